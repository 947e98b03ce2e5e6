package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Pins are the files that keep one pod's namespaces; an empty path means
// that the host's namespace is used.
type Pins struct {
	Net string `json:"net,omitempty"`
	UTS string `json:"uts,omitempty"`
	IPC string `json:"ipc,omitempty"`
	// User owns the others. Create does not make it: see PinProcess.
	User string `json:"user,omitempty"`
}

func (p Pins) all() []pin {
	var out []pin
	for _, e := range []pin{
		{p.Net, "net", unix.CLONE_NEWNET}, {p.UTS, "uts", unix.CLONE_NEWUTS}, {p.IPC, "ipc", unix.CLONE_NEWIPC},
		{p.User, "user", unix.CLONE_NEWUSER},
	} {
		if e.path != "" {
			out = append(out, e)
		}
	}
	return out
}

type pin struct {
	path, kind string
	flag       int
}

// Create makes the namespaces of p, runs setup inside all of them at once
// (host name, sysctls, loopback), and pins them. On an error nothing is left.
func Create(p Pins, setup func() error) error {
	return onOwnThread(func() error { return create(p, setup) })
}

func create(p Pins, setup func() error) error {
	flags := 0
	for _, e := range p.all() {
		flags |= e.flag
	}
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("create namespaces: %w", err)
	}
	if err := setup(); err != nil {
		return err
	}
	for _, e := range p.all() {
		if err := Pin("/proc/thread-self/ns/"+e.kind, e.path); err != nil {
			p.Remove()
			return err
		}
	}
	return nil
}

// Flags are the clone(2) flags of the namespaces of p.
func (p Pins) Flags() uintptr {
	flags := 0
	for _, e := range p.all() {
		flags |= e.flag
	}
	return uintptr(flags)
}

// PinProcess pins the namespaces of p that a process was started in, and runs
// setup inside all of them but the user namespace, which a process with
// threads cannot enter. On an error nothing is left.
func PinProcess(p Pins, pid int, setup func() error) error {
	for _, e := range p.all() {
		if err := Pin(fmt.Sprintf("/proc/%d/ns/%s", pid, e.kind), e.path); err != nil {
			p.Remove()
			return err
		}
	}
	err := p.Do(setup)
	if err != nil {
		p.Remove()
	}
	return err
}

// Do runs fn on a thread inside all namespaces of p but the user namespace. A
// process that fn starts is inside too; goroutines are not.
func (p Pins) Do(fn func() error) error {
	return onOwnThread(func() error {
		for _, e := range p.all() {
			if e.path == p.User {
				continue
			}
			if err := enter(e); err != nil {
				return err
			}
		}
		return fn()
	})
}

func enter(e pin) error {
	fd, err := unix.Open(e.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s namespace %s: %w", e.kind, e.path, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, e.flag); err != nil {
		return fmt.Errorf("enter %s namespace %s: %w", e.kind, e.path, err)
	}
	return nil
}

// Pin keeps the namespace behind the proc file source at path.
func Pin(source, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("pin namespace: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("pin namespace: %w", err)
	}
	f.Close()
	if err := unix.Mount(source, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin namespace at %s: %w", path, err)
	}
	return nil
}

// Alive tells whether every namespace of p is still pinned.
func (p Pins) Alive() bool {
	for _, e := range p.all() {
		if !Exists(e.path) {
			return false
		}
	}
	return true
}

// Remove lets go of the namespaces of p. What is gone already is no error.
func (p Pins) Remove() error {
	var errs []error
	for _, e := range p.all() {
		errs = append(errs, Remove(e.path))
	}
	return errors.Join(errs...)
}

// Remove lets go of one pinned namespace.
func Remove(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err == nil {
			continue // it may have been mounted twice
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		return fmt.Errorf("unpin namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpin namespace: %w", err)
	}
	return nil
}

// Exists tells whether path is a pinned namespace.
func Exists(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// Do runs fn on a thread inside the network namespace pinned at path. An
// empty path is the host's. Goroutines that fn starts are not inside.
func Do(path string, fn func() error) error {
	if path == "" {
		return fn()
	}
	return onOwnThread(func() error {
		if err := enter(pin{path, "network", unix.CLONE_NEWNET}); err != nil {
			return err
		}
		return fn()
	})
}

// Each runs fn on one thread inside each of the network namespaces pinned at paths in turn.
// One that is gone is passed over.
func Each(paths iter.Seq[string], fn func(path string)) {
	_ = onOwnThread(func() error {
		for path := range paths {
			if enter(pin{path, "network", unix.CLONE_NEWNET}) == nil {
				fn(path)
			}
		}
		return nil
	})
}

// onOwnThread runs fn on a thread that ends with it, so that no other
// goroutine ever runs in the changed namespaces. The process's first thread
// is never used: it cannot end, and /proc/self shows its namespaces.
func onOwnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread is thrown away
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- onOwnThread(fn)
			return
		}
		done <- fn()
	}()
	return <-done
}

// LoopbackUp sets the loopback interface of the calling thread's network
// namespace up.
func LoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}
