package host

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

func TestHolder(t *testing.T) {
	all := []*mountinfo.Info{{Mountpoint: "/", ID: 1}, {Mountpoint: "/var", ID: 2}, {Mountpoint: "/var/lib", ID: 3},
		{Mountpoint: "/var", ID: 4}}
	for path, want := range map[string]int{"/": 1, "/usr": 1, "/variable": 1, "/var": 4, "/var/log": 4, "/var/lib/x": 3} {
		if m := holder(all, path); m == nil || m.ID != want {
			t.Errorf("%s: %+v, want %d", path, m, want)
		}
	}
	if holder(nil, "/") != nil {
		t.Error("a mount of none")
	}
}

func TestMountOf(t *testing.T) {
	for _, c := range []struct {
		own, whole       string
		readOnly, failed bool
	}{
		{"rw,relatime", "rw", false, false},
		{"ro,relatime", "rw", true, false},
		{"rw", "ro,errors=remount-ro", true, false},
		{"rw,nosuid", "rw,emergency_ro", false, true},
		{"rw", "rw,shutdown", false, true},
		{"rw,root", "rw,errors=ro-x", false, false},
	} {
		m := mountOf(&mountinfo.Info{Mountpoint: "/x", Source: "tmpfs", Options: c.own, VFSOptions: c.whole})
		if m != (Mount{Point: "/x", Device: "tmpfs", ReadOnly: c.readOnly, Failed: c.failed}) {
			t.Errorf("%s %s: %+v", c.own, c.whole, m)
		}
	}
}

// A mount is told of, and read-only when it is mounted so; in a mount namespace of the
// test's own it would be the namespace's, so that the machine's is used.
func TestWatchMounts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root mounts")
	}
	dir := t.TempDir()
	changed, err := WatchMounts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("test", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	<-changed
	below := filepath.Join(dir, "below")
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(below, link); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	got, err := MountsOf([]string{link, below, filepath.Join(dir, "none")})
	want := Mount{Point: dir, Device: "test", ReadOnly: true}
	if err != nil || len(got) != 2 || got[link] != want || got[below] != want {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWatchMountsEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := WatchMounts(ctx); err != nil {
		t.Fatal(err)
	}
	cancel() // leak.Check sees what stays
}
