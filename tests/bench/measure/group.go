package measure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Cgroups is where the hierarchies are mounted.
const Cgroups = "/sys/fs/cgroup"

// Accountant is the directory of the hierarchy that counts CPU time: cgroup
// v1's cpuacct, else version 2.
func Accountant() string {
	if dir := filepath.Join(Cgroups, "cpuacct"); isDir(dir) {
		return dir
	}
	return Cgroups
}

func isDir(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir()
}

// Group is a cgroup that exists in the accountant's hierarchy alone and holds
// daemons and all that they start, but for pods.
type Group string

// NewGroup makes one.
func NewGroup(name string) (Group, error) {
	g := Group(filepath.Join(Accountant(), name))
	return g, os.Mkdir(string(g), 0o755)
}

// Exists tells whether the group is there.
func (g Group) Exists() bool { return isDir(string(g)) }

// Prefix is a command that puts what follows it into the group.
func (g Group) Prefix() []string {
	return []string{"sh", "-c", `echo 0 >"$0" && exec "$@"`, filepath.Join(string(g), "cgroup.procs")}
}

// Used is the CPU time of all that ran in the group and the groups below it.
func (g Group) Used() (time.Duration, error) {
	if data, err := os.ReadFile(filepath.Join(string(g), "cpuacct.usage")); err == nil {
		ns, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		return time.Duration(ns), err
	} else if errors.Is(err, fs.ErrNotExist) && !g.Exists() {
		return 0, nil // no pod yet
	}
	data, err := os.ReadFile(filepath.Join(string(g), "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "usage_usec" {
			us, err := strconv.ParseInt(f[1], 10, 64)
			return time.Duration(us) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("%s tells no CPU time", g)
}

// PIDs are the processes in the group and the groups below it.
func (g Group) PIDs() ([]int, error) {
	var pids []int
	err := filepath.WalkDir(string(g), func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a pod that goes
		}
		if err != nil || !d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(p, "cgroup.procs"))
		if err != nil {
			return nil
		}
		for s := range strings.FieldsSeq(string(data)) {
			pid, err := strconv.Atoi(s)
			if err != nil {
				return err
			}
			pids = append(pids, pid)
		}
		return nil
	})
	return pids, err
}

// Kill ends all processes of the group, and waits until they are gone: v1 has no
// event for an empty group.
func (g Group) Kill() error {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		pids, err := g.PIDs()
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes of %s do not end: %v", g, pids)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}

// RemoveGroups removes the cgroups of a name with those below them in every
// hierarchy. They hold no process any more.
func RemoveGroups(name string) error {
	var errs []error
	for _, pattern := range []string{filepath.Join(Cgroups, name), filepath.Join(Cgroups, "*", name)} {
		tops, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, top := range tops {
			errs = append(errs, removeTree(top))
		}
	}
	return errors.Join(errs...)
}

// removeTree removes a cgroup and those below it, the deepest first. A cgroup
// whose last process has just ended may be busy for a moment.
func removeTree(top string) error {
	var dirs []string
	_ = filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		return nil
	})
	slices.Reverse(dirs)
	for _, dir := range dirs { // busy for a moment after its last process, without an event
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			err := os.Remove(dir)
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				break
			}
			if time.Now().After(deadline) {
				return err
			}
		}
	}
	return nil
}
