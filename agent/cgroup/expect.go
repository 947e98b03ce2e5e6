package cgroup

import (
	"path/filepath"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
)

// How long a move is expected for, and how often the kernel is reminded of it
// meanwhile: what it has just waited for holds for another grace period, no longer.
const (
	expected = 20 * time.Millisecond
	reminded = 3 * time.Millisecond
)

// ExpectMove tells the kernel that a process will be moved into a group within the next
// 20 ms, and does not wait. The first move after a pause waits for a grace period of RCU
// (7 to 15 ms on a machine that has little to do), since no process of the machine may
// begin or end meanwhile (cgroup_threadgroup_rwsem); those that follow at once do not.
// So it passes beside the work that comes before the move. No group can be made while
// it does.
//
// It asks to move this process to where it is: nothing moves.
func (r *Root) ExpectMove() {
	if r.expected.Swap(time.Now().Add(expected).UnixNano()) != 0 {
		return // who reminds sees the new time
	}
	go func() {
		for {
			// An error costs the time that this is to save, and no more.
			if dir := r.home(); dir != "" {
				_ = write(dir, "cgroup.procs", "0")
			}
			time.Sleep(reminded)
			if until := r.expected.Load(); time.Now().UnixNano() > until && r.expected.CompareAndSwap(until, 0) {
				return
			}
		}
	}()
}

// home is the directory of the group that this process is in, in one hierarchy, "" if
// that is not known. It is read anew each time: an operator may have moved us.
func (r *Root) home() string {
	v1, unified, err := cgroup1.ParseCgroupFileUnified("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	if r.unified != "" {
		return filepath.Join(r.unified, unified)
	}
	name := string(r.v1[0].Name())
	group, ok := v1[name]
	if !ok {
		return ""
	}
	return r.v1[0].(hierarchy).Path(group)
}
