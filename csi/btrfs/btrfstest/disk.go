// Package btrfstest makes disks with btrfs for tests.
package btrfstest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Mkfs makes a file system of the file that is appended to it. It sees no mount table:
// mkfs.btrfs refuses where a source in it is not a path ("Not a directory"), and any mount
// of the machine may have one.
func Mkfs() []string {
	return []string{"unshare", "--mount", "--propagation", "private", "sh", "-c",
		`mount -t tmpfs none /proc && mkdir /proc/self && : >/proc/self/mounts && exec "$@"`, "sh",
		"mkfs.btrfs", "-q", "-f", "-m", "single"}
}

// Disk is where a new file system of that size is mounted until the test ends.
func Disk(t *testing.T, size int64) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
		t.Skip("no mkfs.btrfs: install btrfs-progs")
	}
	dir := t.TempDir()
	file, at := filepath.Join(dir, "disk"), filepath.Join(dir, "mnt")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{
		append(Mkfs(), file),
		{"mount", "-o", "loop,commit=1", file, at}, // what is deleted is gone a second later
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", c, err, out)
		}
	}
	t.Cleanup(func() {
		var out []byte
		var err error
		for range 100 { // a process that was killed may hold a file of it for a moment
			if out, err = exec.Command("umount", at).CombinedOutput(); err == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Errorf("unmount %s: %v: %s", at, err, out)
	})
	return at
}
