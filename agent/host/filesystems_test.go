package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

func TestDeviceUse(t *testing.T) {
	const text = " 254       1 vda1 10 2 800 30 40 5 1600 70 3 90 100 1 0 8 1 2 3\n   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0\n"
	got, err := deviceUse(fakeProc(t, map[string]string{"diskstats": text}))
	want := DeviceUse{
		Read:     Transfers{Completed: 10, Merged: 2, Sectors: 800, Time: 30 * time.Millisecond},
		Written:  Transfers{Completed: 40, Merged: 5, Sectors: 1600, Time: 70 * time.Millisecond},
		InFlight: 3, Busy: 90 * time.Millisecond, Weighted: 100 * time.Millisecond,
	}
	if err != nil || len(got) != 2 || got["254:1"] != want || got["7:0"] != (DeviceUse{}) {
		t.Errorf("%+v, %v", got, err)
	}
	if bytes := want.Read.Bytes(); bytes != 800*512 {
		t.Errorf("%d bytes", bytes)
	}
	for _, bad := range []string{"254 1 vda1 10 2 800\n", strings.Replace(text, "800", "x", 1)} {
		if got, err := deviceUse(fakeProc(t, map[string]string{"diskstats": bad})); err == nil {
			t.Errorf("%q is %+v", bad, got)
		}
	}
}

// What this machine has mounted on block devices is told once, however often it is mounted.
func TestBlockFileSystems(t *testing.T) {
	all, err := BlockFileSystems()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, f := range all {
		if known[f.Device] || f.Device == "" || f.Space.Bytes == 0 || f.Space.Used > f.Space.Bytes {
			t.Errorf("%+v", f)
		}
		known[f.Device] = true
	}
	number, err := deviceOf("/")
	if err != nil {
		t.Fatal(err)
	}
	if link, err := os.Readlink(filepath.Join(sysBlock, number)); err == nil && !known[filepath.Base(link)] {
		t.Errorf("the root is on %s, told are %v", link, known)
	}
}

// A link that somebody puts in the way to a mount point leads to no other file system, nor
// does another one that is mounted there.
func TestBlockDeviceFollowsNoLink(t *testing.T) {
	var st unix.Stat_t
	if err := unix.Stat("/", &st); err != nil {
		t.Fatal(err)
	}
	root := mountinfo.Info{Major: int(unix.Major(st.Dev)), Minor: int(unix.Minor(st.Dev)), Mountpoint: "/", FSType: "ext4"}
	if root.Major == 0 {
		t.Skip("the root has no block device")
	}
	if number, space := blockDevice(&root); number == "" || space.Bytes == 0 {
		t.Errorf("the root itself: %q, %+v", number, space)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/", link); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(m *mountinfo.Info){
		"a link to it":    func(m *mountinfo.Info) { m.Mountpoint = link },
		"below a link":    func(m *mountinfo.Info) { m.Mountpoint = filepath.Join(link, "etc") },
		"another is over": func(m *mountinfo.Info) { m.Mountpoint = "/proc" },
		"a program's":     func(m *mountinfo.Info) { m.FSType = "fuse.sshfs" },
		"of no device":    func(m *mountinfo.Info) { m.Major, m.Source = 0, "tmpfs" },
		"of a file":       func(m *mountinfo.Info) { m.Major, m.Source = 0, "/dev/null" },
		"not there":       func(m *mountinfo.Info) { m.Mountpoint = "/no/such/directory" },
	} {
		m := root
		change(&m)
		if number, _ := blockDevice(&m); number != "" {
			t.Errorf("%s: %q", what, number)
		}
	}
}
