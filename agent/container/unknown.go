package container

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/beneath"
)

// idLength is the length of an ID, which tells files of containers from others.
const idLength = 64

// Unknown are the containers that left files and have no record, as when one was
// damaged.
func (m *Manager) Unknown() ([]string, error) {
	found := map[string]bool{}
	for _, dir := range []string{m.cfg.RunDir, m.cfg.DataDir, m.exitDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("look for containers without a record: %w", err)
		}
		for _, e := range entries {
			if _, known := m.all[e.Name()]; !known && len(e.Name()) == idLength {
				found[e.Name()] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// RemoveUnknown ends a container of which only its ID and its control groups are
// known, and removes all of it.
func (m *Manager) RemoveUnknown(id string, groups []string) error {
	m.endMonitor(id) // first: it would write a file of the container's end
	var errs []error
	for _, g := range groups {
		errs = append(errs, m.cfg.Cgroups.Kill(g))
	}
	for handler := range m.cfg.Runtimes { // those that did not run it know nothing of it
		_ = m.runtimeDelete(&Container{ID: id, Handler: handler})
	}
	for _, g := range groups {
		errs = append(errs, m.cfg.Cgroups.Delete(g))
	}
	errs = append(errs, m.unmountAll(id))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove container %q, which has no record: %w", id, err)
	}
	errs = append(errs, m.removeLayer(id, 0))
	for _, p := range []string{m.bundle(id), filepath.Join(m.exitDir(), id)} {
		errs = append(errs, beneath.RemoveAll(p))
	}
	return errors.Join(errs...)
}

// monitorWait bounds the wait for a monitor that was killed.
const monitorWait = 5 * time.Second

// endMonitor kills the container's conmon, if the process of that number is it, with the
// runtime's processes that it has called.
func (m *Manager) endMonitor(id string) {
	pid, err := readPID(filepath.Join(m.bundle(id), "conmon.pid"))
	if err != nil {
		return
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !bytes.Contains(args, []byte("\x00"+id+"\x00")) {
		return
	}
	if group, err := unix.Getpgid(pid); err == nil && group == pid {
		_ = unix.Kill(-pid, unix.SIGKILL)
	}
	if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(monitorWait.Milliseconds()))
	}
}
