package netns

import (
	"errors"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNamespacesArePinnedAndRemoved(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	p := Pins{Net: filepath.Join(dir, "net"), UTS: filepath.Join(dir, "uts"), IPC: filepath.Join(dir, "ipc")}
	err := Create(p, func() error {
		if err := LoopbackUp(); err != nil {
			return err
		}
		return unix.Sethostname([]byte("inside"))
	})
	if err != nil {
		t.Fatal(err)
	}
	if !p.Alive() {
		t.Fatal("the namespaces are not pinned")
	}
	err = Do(p.Net, func() error {
		ifs, err := net.Interfaces()
		if len(ifs) != 1 || ifs[0].Flags&net.FlagUp == 0 {
			t.Errorf("interfaces inside: %v", ifs)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if name, _ := os.Hostname(); name == "inside" {
		t.Error("the host's name changed")
	}
	for range 2 {
		if err := p.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if p.Alive() {
		t.Error("the namespaces are still pinned")
	}
}

func pinsIn(dir string) Pins {
	at := func(kind string) string { return filepath.Join(dir, "ns", kind) }
	return Pins{Net: at("net"), UTS: at("uts"), IPC: at("ipc")}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root makes namespaces")
	}
}

// TestFailureLeavesNothing: neither a set-up that fails nor a pin that cannot be made
// leaves a namespace or a file.
func TestFailureLeavesNothing(t *testing.T) {
	needRoot(t)
	errSetup := errors.New("set-up failed")
	fails := func() error { return errSetup }
	works := func() error { return nil }
	for name, do := range map[string]func(p Pins) error{
		"set-up": func(p Pins) error { return Create(p, fails) },
		"pin": func(p Pins) error {
			p.IPC = filepath.Join(p.Net, "ipc") // below a file
			return Create(p, works)
		},
		"set-up of a process":  func(p Pins) error { return PinProcess(p, os.Getpid(), fails) },
		"process that is gone": func(p Pins) error { return PinProcess(p, 1<<22+1, works) },
	} {
		dir := t.TempDir()
		if err := do(pinsIn(dir)); err == nil {
			t.Errorf("%s: no error", name)
		}
		left, err := filepath.Glob(filepath.Join(dir, "ns/*"))
		if err != nil || len(left) > 0 {
			t.Errorf("%s: %q is left, %v", name, left, err)
		}
	}
}

// TestProcessesNamespacesArePinned: namespaces that a process was started in, its user
// namespace too, outlive it.
func TestProcessesNamespacesArePinned(t *testing.T) {
	needRoot(t)
	p := pinsIn(t.TempDir())
	p.User = filepath.Join(filepath.Dir(p.Net), "user")
	ids := []syscall.SysProcIDMap{{HostID: 1 << 20, Size: 1 << 16}}
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: p.Flags(), UidMappings: ids, GidMappings: ids}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer p.Remove()
	err = PinProcess(p, cmd.Process.Pid, func() error { return unix.Sethostname([]byte("inside")) })
	if err != nil {
		t.Error(err)
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Error(err)
	}
	if !p.Alive() {
		t.Error("the namespaces went with the process")
	}
	var name string
	if err := p.Do(func() (err error) { name, err = os.Hostname(); return err }); err != nil || name != "inside" {
		t.Errorf("the host name inside is %q, %v", name, err)
	}
	if err := p.Remove(); err != nil || p.Alive() {
		t.Errorf("removed: %v", err)
	}
}

// TestOthersStayOutside: whoever enters a namespace does it alone.
func TestOthersStayOutside(t *testing.T) {
	needRoot(t)
	p := pinsIn(t.TempDir())
	if err := Create(p, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	defer p.Remove()
	outside := networkHere(t)
	err := Do(p.Net, func() error {
		if networkHere(t) == outside {
			t.Error("inside is outside")
		}
		there := make(chan uint64)
		go func() { there <- networkHere(t) }()
		if <-there != outside {
			t.Error("a goroutine that was started inside is there")
		}
		return nil
	})
	if err != nil || networkHere(t) != outside {
		t.Errorf("afterwards: %v", err)
	}
	if err := Do(filepath.Join(filepath.Dir(p.Net), "none"), func() error { return nil }); err == nil {
		t.Error("a namespace that is not there was entered")
	}
	if err := Do("", func() error { return nil }); err != nil {
		t.Errorf("the host's: %v", err)
	}
}

// TestEach enters one namespace after the other, on a thread that is nobody's afterwards.
func TestEach(t *testing.T) {
	needRoot(t)
	a, b := pinsIn(t.TempDir()), pinsIn(t.TempDir())
	for _, p := range []Pins{a, b} {
		if err := Create(p, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		defer p.Remove()
	}
	gone := filepath.Join(t.TempDir(), "none")
	inside := map[string]uint64{}
	Each(slices.Values([]string{a.Net, gone, b.Net}), func(path string) { inside[path] = networkHere(t) })
	want := map[string]uint64{}
	for _, p := range []Pins{a, b} {
		var st unix.Stat_t
		if err := unix.Stat(p.Net, &st); err != nil {
			t.Fatal(err)
		}
		want[p.Net] = st.Ino
	}
	if outside := networkHere(t); !maps.Equal(inside, want) || outside == want[a.Net] || outside == want[b.Net] {
		t.Errorf("went into %v, want %v; outside is %d", inside, want, outside)
	}
}

func networkHere(t *testing.T) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		t.Error(err)
	}
	return st.Ino
}

// TestRemove: one pin that was made twice goes at once; what is no pin is a file.
func TestRemove(t *testing.T) {
	needRoot(t)
	path := filepath.Join(t.TempDir(), "ns", "net")
	for range 2 {
		t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) }) // of a Remove that does not work
		if err := Pin("/proc/self/ns/net", path); err != nil {
			t.Fatal(err)
		}
	}
	if !Exists(path) {
		t.Error("there is no pin")
	}
	if err := Remove(path); err != nil || Exists(path) {
		t.Errorf("the pin is left: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if Exists(path) || (Pins{Net: path}).Alive() {
		t.Error("a file is taken for a namespace")
	}
	if err := Remove(path); err != nil {
		t.Error(err)
	}
	if err := Remove(path); err != nil {
		t.Errorf("a second time: %v", err)
	}
}
