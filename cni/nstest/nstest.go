// Package nstest gives tests network namespaces of their own.
package nstest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// New pins a fresh network namespace to a file, until the test ends. Only root
// may.
func New(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	errc := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), file, "", unix.MS_BIND, "")
		}
		errc <- err
	}()
	if err := <-errc; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(file, unix.MNT_DETACH) })
	return file
}

// In runs f on a thread of its own in the namespace of file; "" is the
// caller's.
func In(file string, f func() error) error {
	if file == "" {
		return f()
	}
	errc := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, as above
		ns, err := netns.GetFromPath(file)
		if err != nil {
			errc <- err
			return
		}
		defer ns.Close()
		if err = netns.Set(ns); err == nil {
			err = f()
		}
		errc <- err
	}()
	return <-errc
}
