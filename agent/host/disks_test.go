package host

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeSys is a tree as sysfs has it: a disk with two partitions, a volume of the device
// mapper on one of them and on a second disk, a volume on that, and one on itself.
func fakeSys(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(root, "devices", path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, at string) {
		at = filepath.Join(root, at)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(root, "devices", to), at); err != nil {
			t.Fatal(err)
		}
	}
	for path, number := range map[string]string{"sda": "8:0", "sda/sda1": "8:1", "sda/sda2": "8:2", "nvme0n1": "259:0",
		"dm-0": "253:0", "dm-1": "253:1", "dm-2": "253:2"} {
		write(path+"/dev", number+"\n")
		link(path, "block/"+number)
	}
	write("sda/sda1/partition", "1\n")
	write("sda/sda2/partition", "2\n")
	link("sda/sda2", "devices/dm-0/slaves/sda2")
	link("nvme0n1", "devices/dm-0/slaves/nvme0n1")
	link("dm-0", "devices/dm-1/slaves/dm-0")
	link("dm-2", "devices/dm-2/slaves/dm-2")
	return filepath.Join(root, "block")
}

func TestDisksBelow(t *testing.T) {
	sys := fakeSys(t)
	for device, want := range map[string]string{
		"8:0":   "8:0",       // a disk
		"8:1":   "8:0",       // a partition of it
		"253:0": "259:0 8:0", // a volume on a partition and a disk
		"253:1": "259:0 8:0", // a volume on that
		"0:42":  "",          // tmpfs
	} {
		found := map[string]bool{}
		if err := addDisks(found, sys, device); err != nil {
			t.Errorf("%s: %v", device, err)
		}
		if got := strings.Join(slices.Sorted(maps.Keys(found)), " "); got != want {
			t.Errorf("%s is on %q, want %q", device, got, want)
		}
	}
	if err := addDisks(map[string]bool{}, sys, "253:2"); err == nil || !strings.Contains(err.Error(), "layers") {
		t.Errorf("a volume on itself: %v", err)
	}
}

// TestDisks: on the machine itself, whatever it has, a disk has a directory of its own in
// sysfs, and no partition is one.
func TestDisks(t *testing.T) {
	disks, err := Disks([]string{"/", filepath.Join(t.TempDir(), "not", "there"), "/proc"})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range disks {
		if _, err := os.Stat(filepath.Join(sysBlock, d, "queue")); err != nil {
			t.Errorf("disk %s has no queue: %v", d, err)
		}
	}
	none, err := Disks([]string{"/proc"})
	if err != nil || len(none) > 0 {
		t.Errorf("/proc is on %q: %v", none, err)
	}
}
