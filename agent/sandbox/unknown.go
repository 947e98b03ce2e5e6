package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Unknown are the sandboxes that left files and have no record, as when one was
// damaged.
func (m *Manager) Unknown() ([]string, error) {
	entries, err := os.ReadDir(m.cfg.RunDir)
	if err != nil {
		return nil, fmt.Errorf("look for sandboxes without a record: %w", err)
	}
	var out []string
	for _, e := range entries {
		if _, known := m.all[e.Name()]; !known && len(e.Name()) == len(NewID()) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// RemoveUnknown ends a sandbox by what its directory and the kernel show of it. Its
// containers have been removed before; groups are control groups of its own.
func (m *Manager) RemoveUnknown(ctx context.Context, id string, groups []string) error {
	s := &Sandbox{ID: id, Config: &criv1.PodSandboxConfig{}, Dir: filepath.Join(m.cfg.RunDir, id)}
	for kind, pin := range map[string]*string{
		"net": &s.Pins.Net, "uts": &s.Pins.UTS, "ipc": &s.Pins.IPC, "user": &s.Pins.User, "pid": &s.PIDPin,
	} {
		at := filepath.Join(s.Dir, "ns", kind)
		if _, err := os.Lstat(at); err == nil {
			*pin = at
		}
	}
	if s.Networked = s.Pins.Net != ""; s.Networked {
		s.Network = m.cfg.Network.Name()
	}
	if s.PIDPin != "" {
		s.HolderPID = firstOf(s.PIDPin)
	}
	errs := []error{m.release(ctx, s)}
	for _, g := range groups {
		errs = append(errs, m.cfg.Cgroups.Kill(g), m.cfg.Cgroups.Delete(g))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove sandbox %q, which has no record: %w", id, err)
	}
	return os.RemoveAll(s.Dir)
}

// firstOf finds the first process of a PID namespace, 0 if it has none.
func firstOf(pin string) int {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !sameNamespace(filepath.Join("/proc", e.Name(), "ns", "pid"), pin) {
			continue
		}
		status, err := os.ReadFile(filepath.Join("/proc", e.Name(), "status"))
		if err == nil && isFirst(string(status)) {
			return pid
		}
	}
	return 0
}

// isFirst tells whether a process is number 1 of its namespace, by its
// proc_pid_status(5).
func isFirst(status string) bool {
	for line := range strings.Lines(status) {
		if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok {
			all := strings.Fields(numbers)
			return len(all) > 0 && all[len(all)-1] == "1"
		}
	}
	return false
}
