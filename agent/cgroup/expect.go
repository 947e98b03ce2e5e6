package cgroup

import (
	"os"
	"path/filepath"

	"github.com/containerd/cgroups/v3/cgroup1"
)

// ExpectMove tells the kernel that a process will be moved into a group within some
// milliseconds, and does not wait. The first move after a pause waits for a grace
// period of RCU (7 to 15 ms on a machine that has little to do), as no process of the
// machine may begin or end meanwhile (cgroup_threadgroup_rwsem, Linux
// Documentation/RCU); those that follow at once do not. What passes now passes beside
// the work that comes before the move.
//
// It asks to move this process where it is: nothing moves.
func (r *Root) ExpectMove() {
	if !r.expecting.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer r.expecting.Store(false)
		if dir := r.home(); dir != "" {
			// An error costs the time that this is to save, and no more.
			_ = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
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
