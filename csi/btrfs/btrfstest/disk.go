// Package btrfstest makes disks with btrfs for tests.
package btrfstest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

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
		{"mkfs.btrfs", "-q", "-f", "-m", "single", file},
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
