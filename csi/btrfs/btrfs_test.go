package btrfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/csi/btrfs/btrfstest"
)

const mib = 1 << 20

// disk is a file system with simple quotas on; the test is over where the kernel has
// none.
func disk(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(btrfstest.Disk(t, 1<<30))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := Enable(f); errors.Is(err, unix.EINVAL) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if on, err := Simple(f); err != nil || !on {
		t.Fatal(on, err)
	}
	if err := Enable(f); err != nil {
		t.Error("the second time:", err)
	}
	return f
}

// limited is a subvolume with a limit.
func limited(t *testing.T, disk *os.File, name string, size int64) *os.File {
	t.Helper()
	path := filepath.Join(disk.Name(), name)
	if err := Create(path); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := Limit(f, size); err != nil {
		t.Fatal(err)
	}
	return f
}

// fill writes until the quota ends it, or at most so much.
func fill(t *testing.T, path string, most int64) (int64, error) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	part := make([]byte, mib)
	for size := int64(0); size < most; {
		n, err := f.Write(part)
		size += int64(n)
		if err != nil {
			return size, err
		}
	}
	return most, f.Sync()
}

func quotaEnds(t *testing.T, path string, limit int64) {
	t.Helper()
	got, err := fill(t, path, 2*limit)
	if !errors.Is(err, unix.EDQUOT) || got > limit {
		t.Errorf("%s has %d bytes, limit %d: %v", path, got, limit, err)
	}
}

func used(t *testing.T, f *os.File) Use {
	t.Helper()
	u, err := Used(f)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestLimit(t *testing.T) {
	d := disk(t)
	v := limited(t, d, "v", 32*mib)
	quotaEnds(t, filepath.Join(v.Name(), "f"), 32*mib)
	if u := used(t, v); u.Limit != 32*mib || u.Bytes < 24*mib || u.Bytes > 32*mib {
		t.Error(u)
	}
	if err := Limit(v, 64*mib); err != nil {
		t.Fatal(err)
	}
	if got, err := fill(t, filepath.Join(v.Name(), "g"), 24*mib); err != nil {
		t.Errorf("a larger limit lets %d bytes be written: %v", got, err)
	}
	other := limited(t, d, "other", 16*mib)
	if u := used(t, other); u.Bytes > mib {
		t.Errorf("the other has %v", u)
	}
}

// nestedHelper is the environment of the process of another user that makes a subvolume
// as nobody who has rights would: it names the groups of it.
const nestedHelper, groupHelper = "BTRFS_TEST_NESTED", "BTRFS_TEST_GROUP"

// TestNestedHelper is that process.
func TestNestedHelper(t *testing.T) {
	path := os.Getenv(nestedHelper)
	if path == "" {
		t.Skip("attack runs it")
	}
	in, _ := strconv.ParseUint(os.Getenv(groupHelper), 10, 64) // 0 for none
	if err := btrfstest.Stray(path, in); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "f"), bytes.Repeat([]byte("x"), 24*mib), 0o600); err != nil {
		t.Fatal(err)
	}
}

// attack has another user make a subvolume at path, in no group but one, and write to it.
func attack(t *testing.T, path string, in uint64) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestNestedHelper$")
	cmd.Env = append(os.Environ(), nestedHelper+"="+path)
	if in != 0 {
		cmd.Env = append(cmd.Env, groupHelper+"="+strconv.FormatUint(in, 10))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestNested: what is made inside by the usual call counts by itself; what was made to
// stay outside of all groups counts once it is adopted.
func TestNested(t *testing.T) {
	d := disk(t)
	for dir := d.Name(); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	v := limited(t, d, "v", 32*mib)
	if err := os.Chmod(v.Name(), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(v.Name(), "a/b"), 0o777); err != nil {
		t.Fatal(err)
	}
	inner := filepath.Join(v.Name(), "a/b/inner")
	if err := Create(inner); err != nil {
		t.Fatal(err)
	}
	if err := Create(filepath.Join(inner, "deeper")); err != nil {
		t.Fatal(err)
	}
	quotaEnds(t, filepath.Join(inner, "deeper/f"), 32*mib)
	if err := os.Remove(filepath.Join(inner, "deeper/f")); err != nil {
		t.Fatal(err)
	}
	unix.Sync()
	other := limited(t, d, "other", 64*mib)
	neighbour, err := ID(other)
	if err != nil {
		t.Fatal(err)
	}
	attack(t, filepath.Join(v.Name(), "stray"), 0)
	attack(t, filepath.Join(v.Name(), "stray2"), group(neighbour))
	unix.Sync()
	if u := used(t, other); u.Bytes < 20*mib {
		t.Logf("the kernel puts nothing into the group of another: %v", u)
	}
	if u := used(t, v); u.Bytes > 16*mib {
		t.Logf("the kernel counts by itself what names its groups: %v", u)
	}
	if n, err := Adopt(v); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	if u := used(t, v); u.Bytes < 48*mib {
		t.Errorf("strays do not count: %v", u)
	}
	if u := used(t, other); u.Bytes > mib {
		t.Errorf("what another wrote counts: %v", u)
	}
	if _, err := fill(t, filepath.Join(v.Name(), "more"), 8*mib); !errors.Is(err, unix.EDQUOT) {
		t.Errorf("more can be written beside adopted strays: %v", err)
	}
	if n, err := Adopt(v); err != nil || n != 0 {
		t.Error("the second time:", n, err)
	}
}

// TestDelete deletes what a container can have made to be in the way.
func TestDelete(t *testing.T) {
	d := disk(t)
	v := limited(t, d, "v", 32*mib)
	for _, dir := range []string{"a", "a/sub", "a/sub/b", "a/sub/b/sub", "c"} {
		path := filepath.Join(v.Name(), dir)
		var err error
		if strings.HasSuffix(dir, "sub") {
			err = Create(path)
		} else {
			err = os.Mkdir(path, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(v.Name(), "a/sub/b/sub/f"), make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Snapshot(v, filepath.Join(v.Name(), "fixed"), true); err != nil {
		t.Fatal(err)
	}
	sub, err := Open(filepath.Join(v.Name(), "a/sub"))
	if err != nil {
		t.Fatal(err)
	}
	flags := uint64(readOnly)
	if err := call(sub, "flags", setVolumeFlags, unsafe.Pointer(&flags)); err != nil {
		t.Fatal(err)
	}
	sub.Close()
	if err := call(v, "flags", setVolumeFlags, unsafe.Pointer(&flags)); err != nil {
		t.Fatal(err)
	}
	if err := Delete(v.Name()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(v.Name()); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := Delete(v.Name()); err != nil {
		t.Error("the second time:", err)
	}
	v.Close()
	dir, err := told(d)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 { // the kernel deletes what was in it in its own time
		unix.Sync()
		if err := Sweep(d); err != nil {
			t.Fatal(err)
		}
		left, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		groups := 0
		for _, e := range left {
			if strings.Contains(e.Name(), "_2") {
				groups++
			}
		}
		if groups == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	left, _ := os.ReadDir(dir)
	t.Errorf("left: %v", left)
}

func TestOpenIsNoLink(t *testing.T) {
	d := disk(t)
	v := limited(t, d, "v", 32*mib)
	link, dir, file := filepath.Join(d.Name(), "link"), filepath.Join(d.Name(), "dir"), filepath.Join(d.Name(), "file")
	if err := errors.Join(os.Symlink(v.Name(), link), os.Mkdir(dir, 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, dir, file, t.TempDir()} {
		if _, err := Open(path); !errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", path, err)
		}
		if err := Delete(path); !errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestSnapshot(t *testing.T) {
	d := disk(t)
	v := limited(t, d, "v", 32*mib)
	if err := os.WriteFile(filepath.Join(v.Name(), "f"), []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	fixed, changing := filepath.Join(d.Name(), "fixed"), filepath.Join(d.Name(), "changing")
	if err := errors.Join(Snapshot(v, fixed, true), Snapshot(v, changing, false)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(fixed, "f"), []byte("after"), 0o600); !errors.Is(err, unix.EROFS) {
		t.Error("a snapshot was written to:", err)
	}
	if err := os.WriteFile(filepath.Join(changing, "f"), []byte("after"), 0o600); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{v.Name(), fixed} {
		if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(got) != "before" {
			t.Errorf("%s: %q, %v", dir, got, err)
		}
	}
}

// FuzzOffsets has a kernel that says anything.
func FuzzOffsets(f *testing.F) {
	item := make([]byte, headerSize+4)
	binary.LittleEndian.PutUint64(item[8:], 256)
	binary.LittleEndian.PutUint64(item[16:], 7)
	binary.LittleEndian.PutUint32(item[24:], rootRef)
	binary.LittleEndian.PutUint32(item[28:], 4)
	f.Add(item, uint32(1))
	f.Add(append(item, item...), uint32(2))
	f.Add(item[:20], uint32(1))
	f.Fuzz(func(t *testing.T, found []byte, items uint32) {
		out, err := offsets(found, items, 256, rootRef)
		if err == nil && len(out) != int(items) || len(out) > len(found)/headerSize {
			t.Errorf("%d items, %d offsets, %v", items, len(out), err)
		}
	})
}
