package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-project/shoal/agent/beneath"
	"golang.org/x/sys/unix"
)

// killWait is how long a killed container may take to be reported gone.
const killWait = 2 * time.Minute

// Stop sends the container's stop signal and, after grace, kills it. It
// returns when the container has exited. One that does not run is no error.
func (m *Manager) Stop(ctx context.Context, id string, grace time.Duration) error {
	s, err := m.find(id)
	if err != nil {
		return err
	}
	c := m.state(s)
	if c.State != Running {
		return nil
	}
	if grace > 0 {
		sig, err := parseSignal(c.StopSignal)
		if err != nil {
			return fmt.Errorf("stop container %q: %w", c.ID, err)
		}
		if err := signal(c.PID, c.PIDStart, sig); err != nil {
			return fmt.Errorf("stop container %q: %w", c.ID, err)
		}
		if gone, err := m.waitFor(ctx, s, grace); gone || err != nil {
			return err
		}
	}
	err = signal(c.PID, c.PIDStart, unix.SIGKILL)
	if err == nil {
		// The pod's group, or the container's in it, may be frozen.
		err = m.cfg.Cgroups.Thaw(filepath.Dir(c.Cgroup))
	}
	if err != nil {
		return fmt.Errorf("kill container %q: %w", c.ID, err)
	}
	gone, err := m.waitFor(ctx, s, killWait)
	if err == nil && !gone {
		err = fmt.Errorf("container %q: its process %d has been killed but does not end (is its storage stuck?)", c.ID,
			c.PID)
	}
	return err
}

// signal sends to a process, if it is still the one that began then.
func signal(pid int, start uint64, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return err
	}
	defer unix.Close(fd)
	if same, err := sameProcess(pid, start); !same || err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// rtMin is the first real-time signal that C programs may use, signal(7).
const rtMin, rtMax = 34, 64

// parseSignal reads a name (with or without SIG, also SIGRTMIN+n) or number.
func parseSignal(name string) (unix.Signal, error) {
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= rtMax {
		return unix.Signal(n), nil
	}
	s := strings.TrimPrefix(strings.ToUpper(name), "SIG")
	if n := unix.SignalNum("SIG" + s); n != 0 {
		return n, nil
	}
	for prefix, base := range map[string]int{"RTMIN": rtMin, "RTMAX": rtMax} {
		rest, ok := strings.CutPrefix(s, prefix)
		if !ok {
			continue
		}
		off := 0
		if rest != "" {
			var err error
			if off, err = strconv.Atoi(strings.Replace(rest, "PLUS", "+", 1)); err != nil {
				if off, err = strconv.Atoi("-" + strings.TrimPrefix(rest, "MINUS")); err != nil {
					break
				}
			}
		}
		if n := base + off; n >= rtMin && n <= rtMax {
			return unix.Signal(n), nil
		}
	}
	return 0, fmt.Errorf("unknown signal %q", name)
}

// Remove kills the container if it runs, and removes all of it but its log.
func (m *Manager) Remove(ctx context.Context, id string) error {
	s, err := m.find(id)
	if err != nil {
		return err
	}
	id = m.state(s).ID
	if err := m.Stop(ctx, id, 0); err != nil {
		return err
	}
	s.op.Lock()
	defer s.op.Unlock()
	c := m.state(s)
	if err := m.sweep(c); err != nil {
		return err
	}
	if err := m.records.Delete(id); err != nil {
		return fmt.Errorf("remove container record: %w", err)
	}
	m.mu.Lock()
	delete(m.all, id)
	m.mu.Unlock()
	m.giveProject(c)
	return nil
}

// sweep removes a container's processes, groups, mounts and files. All of it
// may be gone already.
func (m *Manager) sweep(c *Container) error {
	var errs []error
	errs = append(errs, m.cfg.Cgroups.Kill(c.Cgroup), m.runtimeDelete(c), m.cfg.Cgroups.Delete(c.Cgroup))
	errs = append(errs, m.unmountAll(c.ID))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove container %q: %w", c.ID, err)
	}
	errs = append(errs, m.removeLayer(c.ID, c.Project))
	for _, p := range []string{m.bundle(c.ID), filepath.Join(m.exitDir(), c.ID)} {
		errs = append(errs, beneath.RemoveAll(p))
	}
	return errors.Join(errs...)
}

// unmountAll unmounts the root file system and the volumes that are mounts of our own.
func (m *Manager) unmountAll(id string) error {
	errs := []error{unmount(m.rootfs(id)), unmount(m.pidPin(id)), unmount(m.logMount(id))}
	for _, kind := range []string{"image-*", "mapped-*"} {
		volumes, _ := filepath.Glob(filepath.Join(m.bundle(id), kind))
		for _, v := range volumes {
			errs = append(errs, unmount(v))
		}
	}
	return errors.Join(errs...)
}

// runtimeDelete has the runtime forget the container. For runc and crun its
// state directory is all there is to forget once processes and groups are
// gone.
func (m *Manager) runtimeDelete(c *Container) error {
	rt, err := m.runtime(c.Handler)
	if err != nil {
		return nil // the handler was removed from the configuration
	}
	if rt.Direct() {
		return os.RemoveAll(rt.StateDir(c.ID))
	}
	args := append(rt.GlobalArgs(m.runtimeLog(c.ID)), "delete", "--force", c.ID)
	cmd := exec.Command(rt.Path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("OCI runtime delete failed: %s: %w", strings.TrimSpace(string(out)), err)
	}
	return nil
}
