package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Add moves a process into the group, in every hierarchy.
func (r *Root) Add(path string, pid int) error {
	for _, dir := range r.dirs(path) {
		if err := write(dir, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("add process to cgroup %s: %w", path, err)
		}
	}
	return nil
}

// Pids lists the processes of the group and of the groups below it; none if
// the group does not exist.
func (r *Root) Pids(path string) ([]int, error) {
	seen := map[int]bool{}
	var out []int
	for _, dir := range []string{r.main(path), filepath.Join(r.unified, path)} {
		if dir == path {
			continue
		}
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return ignoreGone(err)
			}
			b, err := os.ReadFile(filepath.Join(p, "cgroup.procs"))
			for f := range strings.FieldsSeq(string(b)) {
				if pid, _ := strconv.Atoi(f); pid > 0 && !seen[pid] {
					seen[pid] = true
					out = append(out, pid)
				}
			}
			return ignoreGone(err)
		})
		if err != nil {
			return out, fmt.Errorf("list processes of cgroup %s: %w", path, err)
		}
	}
	return out, nil
}

// ignoreGone hides that a group disappeared (or is threaded) meanwhile.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// killWait bounds Kill against a group that forks faster than it is killed,
// or whose processes are stuck in the kernel.
const killWait = 2 * time.Second

// Kill ends every process of the group and of the groups below it, and waits
// until they are gone (at most about two seconds).
func (r *Root) Kill(path string) error {
	if r.unified != "" && path != "" && path != "/" {
		_ = write(filepath.Join(r.unified, path), "cgroup.kill", "1")
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
func (r *Root) Delete(path string) error {
	if strings.Trim(filepath.Clean("/"+path), "/") == "" {
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

// List names the groups directly below path.
func (r *Root) List(path string) []string { return children(r.main(path)) }

func children(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// monitorGroup holds a pod's monitors on v2, where a group with controlled
// children must have no processes of its own.
const monitorGroup = "shoal-monitor"

// AddMonitor puts the monitor of a container, named by the container's group,
// below the pod's group, which must exist, so that the pod pays for its memory.
// On v1 this is the memory hierarchy alone: each move costs a grace period of
// the kernel.
func (r *Root) AddMonitor(container string, pid int) error {
	return r.addBeside(container, pid, "memory")
}

// AddPause does the same for a pod's pause process, named by a group that a
// container of that ID would have. A container that may trace processes can
// make it work, so all of the pod's limits are its limits.
func (r *Root) AddPause(container string, pid int) error {
	return r.addBeside(container, pid, "memory", "pids", "cpu")
}

func (r *Root) addBeside(container string, pid int, controllers ...string) error {
	pod := filepath.Dir(container)
	if r.units != nil {
		name := strings.Replace(unitName(container), scopePrefix+"-", scopePrefix+"-conmon-", 1)
		if err := r.units.adopt(name, unitName(pod), pid); err != nil {
			return fmt.Errorf("add monitor to cgroup %s: %w", pod, err)
		}
		return nil
	}
	var done []string
	for _, c := range controllers {
		dir := r.dir(c, pod)
		if slices.Contains(done, dir) || dir == "" && c != "memory" {
			continue
		}
		done = append(done, dir)
		if r.on2(c) {
			dir = filepath.Join(dir, monitorGroup)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("add monitor to cgroup %s: %w", pod, err)
			}
		}
		if err := write(dir, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("add monitor to cgroup %s: %w", pod, err)
		}
	}
	return nil
}
