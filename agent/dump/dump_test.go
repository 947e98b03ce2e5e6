package dump

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/containerd/v2/pkg/archive"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write makes files with their names for content.
func write(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, n := range names {
		p := filepath.Join(dir, n)
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		must(t, os.WriteFile(p, []byte(n), 0o644))
	}
}

// listing is a tree as text: kinds, modes, owners, content, links.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.Walk(dir, func(p string, info os.FileInfo, err error) error {
		if err != nil || p == dir {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		fmt.Fprintf(&b, "%s %v %d:%d", rel, info.Mode(), st.Uid, st.Gid)
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			attribute := make([]byte, 64)
			n, _ := unix.Lgetxattr(p, "user.note", attribute)
			fmt.Fprintf(&b, " %d %q %q", st.Nlink, data, attribute[:max(n, 0)])
		case info.Mode()&os.ModeSymlink != 0:
			target, _ := os.Readlink(p)
			b.WriteString(" -> " + target)
		}
		b.WriteString("\n")
		return nil
	}))
	return b.String()
}

// What a container changed in an overlay, laid over another copy of the image by
// containerd, is what the container saw.
func TestLayer(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("overlays need root: run the tests as root")
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"lower", "upper", "work", "merged", "copy"} {
		must(t, os.Mkdir(at(d), 0o755))
	}
	for _, image := range []string{"lower", "copy"} {
		write(t, at(image), "etc/kept", "etc/changed", "etc/deleted", "old/a", "old/b", "gone/x")
	}
	must(t, unix.Mount("overlay", at("merged"), "overlay", 0,
		"lowerdir="+at("lower")+",upperdir="+at("upper")+",workdir="+at("work")))
	t.Cleanup(func() { _ = unix.Unmount(at("merged"), unix.MNT_DETACH) })
	m := at("merged")
	must(t, os.WriteFile(m+"/etc/changed", []byte("other"), 0o600))
	must(t, os.Remove(m+"/etc/deleted"))
	must(t, os.RemoveAll(m+"/gone"))
	must(t, os.RemoveAll(m+"/old")) // and made anew: opaque
	write(t, m, "old/new", "deep/er/and/deeper")
	must(t, os.Chown(m+"/old/new", 33, 44))
	must(t, os.Chmod(m+"/old/new", 0o4755))
	must(t, os.Link(m+"/old/new", m+"/old/second"))
	must(t, os.Symlink("/etc/shadow", m+"/link"))
	must(t, os.Symlink("..", m+"/deep/up"))
	must(t, unix.Mkfifo(m+"/fifo", 0o640))
	must(t, unix.Mknod(m+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, unix.Setxattr(m+"/old/new", "user.note", []byte("a note"), 0))
	socket, err := net.Listen("unix", m+"/socket")
	must(t, err)
	defer socket.Close()

	var out bytes.Buffer
	deleted, err := Layer(t.Context(), &out, at("upper"), IDs{})
	must(t, err)
	slices.Sort(deleted)
	if got := strings.Join(deleted, " "); got != "/etc/deleted /gone" {
		t.Errorf("deleted: %s", got)
	}
	_, err = archive.Apply(t.Context(), at("copy"), bytes.NewReader(out.Bytes()))
	must(t, err)
	want := strings.Split(listing(t, m), "\n")
	want = slices.DeleteFunc(want, func(line string) bool { return strings.HasPrefix(line, "socket ") })
	if got := listing(t, at("copy")); got != strings.Join(want, "\n") {
		t.Errorf("the copy has\n%sbut the container saw\n%s", got, strings.Join(want, "\n"))
	}
}

// What an archive cannot name keeps no file out of it.
func TestOddAttributes(t *testing.T) {
	upper := t.TempDir()
	write(t, upper, "file")
	for _, name := range []string{"user.a=b", "user.c"} {
		must(t, unix.Setxattr(filepath.Join(upper, "file"), name, []byte("x"), 0))
	}
	var out bytes.Buffer
	_, err := Layer(t.Context(), &out, upper, IDs{})
	must(t, err)
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		must(t, err)
		if h.Name != "file" {
			continue
		}
		if got := h.PAXRecords; got["SCHILY.xattr.user.c"] != "x" || len(got) > 2 { // and the time
			t.Errorf("attributes: %v", got)
		}
		return
	}
}

// What is remembered of a container's paths has a bound, whatever it makes.
func TestRemembered(t *testing.T) {
	l := layer{}
	n := 0
	for long := strings.Repeat("x", 100<<10); l.remembers(long); n++ {
	}
	if n < 100 || n*100<<10 > maxRemembered {
		t.Errorf("%d paths of 100 KiB are remembered", n)
	}
}

// Owners are those that the pod's user namespace shows.
func TestLayerOfUserNamespace(t *testing.T) {
	upper := t.TempDir()
	write(t, upper, "own", "alien")
	must(t, os.Chown(upper+"/own", 100033, 200000))
	var out bytes.Buffer
	_, err := Layer(t.Context(), &out, upper, IDs{
		UIDs: []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}},
		GIDs: []specs.LinuxIDMapping{{ContainerID: 0, HostID: 200000, Size: 65536}},
	})
	must(t, err)
	got := map[string]string{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		must(t, err)
		got[h.Name] = fmt.Sprint(h.Uid, " ", h.Gid)
	}
	if got["own"] != "33 0" || got["alien"] != "65534 65534" {
		t.Errorf("owners: %v", got)
	}
}

// A file that shrinks after it was looked at keeps the archive whole.
func TestShrinkingFile(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	defer f.Close()
	_, err = f.WriteString("abc")
	must(t, err)
	_, err = f.Seek(0, io.SeekStart)
	must(t, err)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	must(t, appendFile(w, &tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: 5}, f))
	must(t, w.Close())
	r := tar.NewReader(&out)
	_, err = r.Next()
	must(t, err)
	if data, err := io.ReadAll(r); err != nil || string(data) != "abc\x00\x00" {
		t.Errorf("%q %v", data, err)
	}
}

// work is a directory as an OCI runtime leaves it.
func work(t *testing.T, dir string) (*Work, Container) {
	t.Helper()
	w, err := NewWork(filepath.Join(dir, "c.tar"))
	must(t, err)
	write(t, w.Images(), "inventory.img", "pages-1.img")
	write(t, w.Logs(), "dump.log", "stats-dump", "runtime.log")
	write(t, dir, "spec", "upper/file")
	must(t, os.MkdirAll(filepath.Join(dir, "upper"), 0o755))
	return w, Container{
		Config:   metadata.ContainerConfig{ID: "id", Name: "main", OCIRuntime: "runc", RootfsImageName: "busybox"},
		Status:   metadata.ContainerdStatus{CreatedAt: 5, Pid: 7},
		CRI:      json.RawMessage(`{"id":"id"}`),
		SpecFile: filepath.Join(dir, "spec"),
		Upper:    filepath.Join(dir, "upper"),
	}
}

func left(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, workPattern))
	must(t, err)
	return all
}

func TestPack(t *testing.T) {
	dir := t.TempDir()
	w, c := work(t, dir)
	to := filepath.Join(dir, "c.tar")
	must(t, w.Pack(t.Context(), c, to))
	must(t, w.Remove())
	if l := left(t, dir); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
	info, err := os.Stat(to)
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	into := t.TempDir()
	out, err := exec.Command("tar", "-xvf", to, "-C", into).CombinedOutput()
	must(t, err)
	want := "config.dump spec.dump status status.dump checkpoint/ checkpoint/inventory.img checkpoint/pages-1.img " +
		"dump.log stats-dump rootfs-diff.tar"
	if got := strings.Join(strings.Fields(string(out)), " "); got != want {
		t.Errorf("the archive has %s", got)
	}
	config, _, err := metadata.ReadContainerCheckpointConfigDump(into) // as checkpointctl reads it
	if err != nil || config.ID != "id" || config.OCIRuntime != "runc" || config.RootfsImageName != "busybox" {
		t.Errorf("config.dump: %+v %v", config, err)
	}
	status, _, err := metadata.ReadContainerCheckpointStatusFile(into)
	if err != nil || status.CreatedAt != 5 || status.Pid != 7 {
		t.Errorf("status: %+v %v", status, err)
	}
	again, c := work(t, dir)
	if err := again.Pack(t.Context(), c, to); !errors.Is(err, os.ErrExist) {
		t.Errorf("the second archive of a name: %v", err)
	}
	must(t, again.Remove())
}

// A file of the container that no disk holds ends it while it is written, and nothing is
// left; nor is of one that nobody waits for.
func TestPackEndsEarly(t *testing.T) {
	dir := t.TempDir()
	to := filepath.Join(dir, "c.tar")
	w, c := work(t, dir)
	must(t, os.Truncate(filepath.Join(c.Upper, "file"), 1<<40))
	asked := 0
	full := errors.New("no room")
	w.Room = func() error {
		if asked++; asked == 4 {
			return full
		}
		return nil
	}
	if err := w.Pack(t.Context(), c, to); !errors.Is(err, full) {
		t.Errorf("error %v", err)
	}
	must(t, w.Remove())
	w, c = work(t, dir)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Pack(gone, c, to); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	must(t, Sweep(dir)) // as an agent that was killed
	if _, err := os.Stat(to); err == nil || len(left(t, dir)) > 0 {
		t.Errorf("left: %v, the archive: %v", left(t, dir), err)
	}
}

func TestCheckCRIU(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	for version, good := range map[string]bool{
		"Version: 3.16": true, "Version: 3.17.1": true, "Version: 4.2.1\nGitID: v4.2.1": true,
		"Version: 3.15": false, "Version: 2.99.9": false, "nothing": false,
	} {
		must(t, os.WriteFile(filepath.Join(dir, "criu"), []byte("#!/bin/sh\nprintf '"+version+"\\n'\n"), 0o755))
		err := CheckCRIU(t.Context(), "c1")
		if good != (err == nil) {
			t.Errorf("%q: %v", version, err)
		}
		// The beginning is what upstream's test looks for.
		if want := "CRIU binary not found or too old (<31600). Failed to checkpoint container c1"; err != nil &&
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", version, err)
		}
	}
}

func TestComplaints(t *testing.T) {
	w, _ := work(t, t.TempDir())
	must(t, os.WriteFile(filepath.Join(w.Logs(), "dump.log"), []byte("(00.1) fine\n"+
		"(00.2) Error (criu/sk-inet.c:191): inet: Connected TCP socket, consider using --tcp-established option.\n"+
		"(00.3) Error (criu/cr-dump.c:1): Dumping FAILED.\n"), 0o600))
	want := "(criu/sk-inet.c:191): inet: Connected TCP socket, consider using --tcp-established option.; " +
		"(criu/cr-dump.c:1): Dumping FAILED."
	if got := w.Complaints(); got != want {
		t.Errorf("complaints: %s", got)
	}
	must(t, w.Remove())
	if got := w.Complaints(); got != "" {
		t.Errorf("without a log: %s", got)
	}
}
