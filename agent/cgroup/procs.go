package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	"golang.org/x/sys/unix"
)

// Pids lists the processes of the group and of the groups below it; none if
// the group does not exist. The library's list ends where a group disappears
// meanwhile, so that Kill would take the rest for gone, and at a threaded one.
func (r *Root) Pids(path string) ([]int, error) {
	var out []int
	for _, dir := range r.memberships(path) {
		if err := processes(dir, &out); err != nil {
			return nil, fmt.Errorf("list processes of cgroup %s: %w", path, err)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// processes appends those of a group and of the groups below it.
func processes(dir string, out *[]int) error {
	f, err := inside(dir)
	if err != nil {
		return ignoreGone(err)
	}
	text, err := f.read("cgroup.procs")
	for line := range bytes.Lines(text) {
		if pid := number(line); pid > 0 {
			*out = append(*out, int(pid))
		}
	}
	f.close()
	if err := ignoreGone(err); err != nil {
		return err
	}
	names, err := below(dir)
	if err != nil {
		return ignoreGone(err)
	}
	for _, name := range names {
		if err := processes(filepath.Join(dir, name), out); err != nil {
			return err
		}
	}
	return nil
}

// ignoreGone hides that a group disappeared meanwhile, or that it is threaded:
// the processes of a threaded group are those of a group above it.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// Thaw lets the processes of a group of v1, and of the groups below it, go on that somebody
// froze: a signal ends none before (cgroup-v1/freezer-subsystem). On v2 SIGKILL does.
func (r *Root) Thaw(path string) error {
	for _, dir := range r.dirs(path) {
		if _, err := os.Stat(filepath.Join(dir, freezerState)); err != nil {
			continue // another hierarchy, or the group is gone
		}
		err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return ignoreGone(err)
			}
			return thaw(filepath.Join(at, freezerState))
		})
		if err != nil {
			return fmt.Errorf("thaw cgroup %s: %w", path, err)
		}
	}
	return nil
}

const freezerState = "freezer.state"

func thaw(file string) error {
	state, err := os.ReadFile(file)
	if err == nil && string(bytes.TrimSpace(state)) != "THAWED" {
		err = os.WriteFile(file, []byte("THAWED"), 0)
	}
	return ignoreGone(err)
}

// killWait bounds Kill against a group that forks faster than it is killed,
// or whose processes are stuck in the kernel.
const killWait = 2 * time.Second

// Kill ends every process of the group and of the groups below it, and waits
// until they are gone (at most about two seconds).
func (r *Root) Kill(path string) error {
	// without it cgroup2 freezes the group and reaps our children
	if clean(path) != "/" && r.HasFile(path, "cgroup.kill") {
		if m, err := r.group2(path); err == nil {
			_ = m.Kill()
		}
	}
	if err := r.Thaw(path); err != nil {
		return err
	}
	wait := time.Millisecond
	for end := time.Now().Add(killWait); time.Now().Before(end); wait = min(2*wait, 20*time.Millisecond) {
		pids, err := r.Pids(path)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(wait) // v1 has no event for an empty group
	}
	return fmt.Errorf("kill cgroup %s: processes are left", path)
}

// Delete removes the group and the groups below it. A group that does not
// exist is no error; one with processes is, after a short wait for those
// that are just ending.
//
// The library's deletion looks for processes first, which the kernel does
// anyhow: it tells success where a group below disappears meanwhile and leaves
// the rest (cgroup1), refuses a group with a threaded one below it (cgroup2),
// and takes ten times as long, as it asks for the state of every control file.
func (r *Root) Delete(path string) error {
	if clean(path) == "/" {
		return errors.New("delete cgroup: refusing to remove the root")
	}
	var errs []error
	if r.units != nil && isUnit(path) {
		if err := r.units.stop(unitName(path)); err != nil {
			errs = append(errs, err)
		}
	}
	for _, dir := range r.dirs(path) {
		if err := removeTree(dir); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("delete cgroup %s: %w", path, err)
	}
	return nil
}

// removeTree removes a control group directory, children first. The kernel
// answers EBUSY until the last process has been reaped, so it tries again.
func removeTree(dir string) error {
	err := unix.Rmdir(dir)
	for wait := time.Millisecond; err != nil && wait < 300*time.Millisecond; wait *= 2 {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		for _, name := range children(dir) {
			if err := removeTree(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		if err = unix.Rmdir(dir); err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		time.Sleep(wait)
	}
	if err != nil {
		return fmt.Errorf("rmdir %s: %w", dir, err)
	}
	return nil
}

// monitorGroup holds a pod's monitors on v2, where a group with controlled
// children must have no processes of its own.
const monitorGroup = "shoal-monitor"

// AddMonitor puts the monitor of a container, named by the container's group,
// below the pod's group, which must exist, so that the pod pays for its memory.
// On v1 this is the memory hierarchy alone: each move costs a grace period of
// the kernel.
func (r *Root) AddMonitor(container string, pid int) error {
	return r.addBeside(container, pid, cgroup1.Memory)
}

// AddPause does the same for a pod's pause process, named by a group that a
// container of that ID would have. A container that may trace processes can
// make it work, so all of the pod's limits are its limits.
func (r *Root) AddPause(container string, pid int) error {
	return r.addBeside(container, pid, cgroup1.Memory, cgroup1.Pids, cgroup1.Cpu)
}

func (r *Root) addBeside(container string, pid int, controllers ...cgroup1.Name) error {
	pod := filepath.Dir(container)
	if err := r.add(container, pod, pid, controllers); err != nil {
		return fmt.Errorf("add monitor to cgroup %s: %w", pod, err)
	}
	return nil
}

func (r *Root) add(container, pod string, pid int, controllers []cgroup1.Name) error {
	if r.units != nil {
		name := strings.Replace(unitName(container), scopePrefix+"-", scopePrefix+"-conmon-", 1)
		return r.units.adopt(name, unitName(pod), pid)
	}
	if len(r.pick(controllers...)) > 0 {
		cg, err := r.group1(pod, controllers...)
		if err != nil {
			return err
		}
		if err := cg.AddProc(uint64(pid)); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(controllers, func(c cgroup1.Name) bool { return r.on2(string(c)) }) {
		return nil
	}
	m, err := r.group2(pod)
	if err != nil {
		return err
	}
	if m, err = m.NewChild(monitorGroup, nil); err != nil {
		return err
	}
	return m.AddProc(uint64(pid))
}
