package cgroup

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"

	"github.com/shoal-project/shoal/agent/host"
)

// Stats is what one group uses. Memory counts are bytes.
type Stats struct {
	Time            time.Time
	CPUNanos        uint64 // total CPU time
	UserNanos       uint64 // of it, outside the kernel
	SystemNanos     uint64
	ThrottledNanos  uint64
	Periods         uint64 // CFS periods that had runnable tasks
	Throttled       uint64 // periods in which the quota ran out
	Memory          uint64 // usage with page cache
	MemoryLimit     uint64 // 0 = no limit
	WorkingSet      uint64 // usage without inactive page cache
	RSS             uint64 // anonymous memory
	Cache           uint64 // page cache
	MappedFile      uint64 // of it, mapped by processes
	MaxMemory       uint64 // the most that was used; 0 where the kernel does not tell
	MemoryFailures  uint64 // how often the limit was reached
	Swap            uint64
	PageFaults      uint64
	MajorPageFaults uint64
	Pids            uint64
	PidsLimit       uint64 // 0 = no limit
	OOMKills        uint64
	// Stalls by resource, nil where the kernel does not tell.
	CPUStall, MemoryStall, IOStall *host.Pressure
}

// Available is what is left of the memory limit, 0 without a limit.
func (s Stats) Available() uint64 {
	if s.MemoryLimit == 0 || s.WorkingSet > s.MemoryLimit {
		return 0
	}
	return s.MemoryLimit - s.WorkingSet
}

// Stat reads the usage of the group. A controller that the host does not
// have leaves its fields zero; a group that does not exist is an error
// (fs.ErrNotExist).
func (r *Root) Stat(path string) (Stats, error) { return r.read(path, true) }

// Use is the Time, CPUNanos, Memory, WorkingSet and Swap of Stat, and nothing else: what
// metrics of resources tell of every pod, many times a minute. It reads three or four files
// where Stat reads twelve or more.
func (r *Root) Use(path string) (Stats, error) { return r.read(path, false) }

// read leaves out what cannot be read: the group may be disappearing.
func (r *Root) read(path string, all bool) (Stats, error) {
	s := Stats{Time: time.Now()}
	if _, err := os.Stat(r.main(path)); err != nil {
		return s, fmt.Errorf("stat cgroup %s: %w", path, err)
	}
	from := func(dir string, read func(f *files, s *Stats, all bool)) {
		if f, err := inside(dir); err == nil {
			defer f.close()
			read(f, &s, all)
		}
	}
	from(r.dir1(path, cgroup1.Cpuacct), (*files).processors1)
	from(r.dir1(path, cgroup1.Memory), (*files).memory1)
	if all {
		from(r.dir1(path, cgroup1.Cpu), (*files).quota1)
		from(r.dir1(path, cgroup1.Pids), (*files).pids)
	}
	from(r.dir2(path), r.read2)
	if !all {
		return s.use(), nil
	}
	return s, nil
}

func (r *Root) read2(f *files, s *Stats, all bool) {
	if r.mode == V2 || r.on2("cpu") { // the core counts processor time also without the controller
		f.processors2(s)
	}
	if r.on2("memory") {
		f.memory2(s, all)
	}
	if !all {
		return
	}
	if r.on2("pids") {
		f.pids(s, all)
	}
	s.CPUStall, s.MemoryStall, s.IOStall = f.stall("cpu"), f.stall("memory"), f.stall("io")
}

// use is what Use tells.
func (s Stats) use() Stats {
	return Stats{Time: s.Time, CPUNanos: s.CPUNanos, Memory: s.Memory, WorkingSet: s.WorkingSet, Swap: s.Swap}
}

// tick is the kernel's unit of time for programs (USER_HZ, time(7)), in nanoseconds.
const tick = 1e9 / 100

func (f *files) processors1(s *Stats, all bool) {
	s.CPUNanos = f.number("cpuacct.usage")
	if all {
		f.values("cpuacct.stat", value{"user", &s.UserNanos, tick}, value{"system", &s.SystemNanos, tick})
	}
}

func (f *files) quota1(s *Stats, _ bool) {
	f.values("cpu.stat", value{"nr_periods", &s.Periods, 1}, value{"nr_throttled", &s.Throttled, 1},
		value{"throttled_time", &s.ThrottledNanos, 1})
}

func (f *files) memory1(s *Stats, all bool) {
	s.Memory = f.number("memory.usage_in_bytes")
	inactive := s.Memory // where that is not told
	f.values("memory.stat", value{"total_inactive_file", &inactive, 1}, value{"total_swap", &s.Swap, 1},
		value{"total_rss", &s.RSS, 1}, value{"total_cache", &s.Cache, 1}, value{"total_mapped_file", &s.MappedFile, 1},
		value{"total_pgfault", &s.PageFaults, 1}, value{"total_pgmajfault", &s.MajorPageFaults, 1})
	s.WorkingSet = s.Memory - min(s.Memory, inactive)
	if !all {
		return
	}
	s.MemoryLimit, s.MaxMemory = limited(f.number("memory.limit_in_bytes")), f.number("memory.max_usage_in_bytes")
	s.MemoryFailures = f.number("memory.failcnt")
	f.values("memory.oom_control", value{"oom_kill", &s.OOMKills, 1})
}

func (f *files) pids(s *Stats, _ bool) {
	s.Pids, s.PidsLimit = f.number("pids.current"), f.number("pids.max")
}

func (f *files) processors2(s *Stats) {
	const micro = 1000
	f.values("cpu.stat", value{"usage_usec", &s.CPUNanos, micro}, value{"user_usec", &s.UserNanos, micro},
		value{"system_usec", &s.SystemNanos, micro}, value{"throttled_usec", &s.ThrottledNanos, micro},
		value{"nr_periods", &s.Periods, 1}, value{"nr_throttled", &s.Throttled, 1})
}

func (f *files) memory2(s *Stats, all bool) {
	s.Memory, s.Swap = f.number("memory.current"), f.number("memory.swap.current")
	inactive := s.Memory
	f.values("memory.stat", value{"inactive_file", &inactive, 1}, value{"anon", &s.RSS, 1}, value{"file", &s.Cache, 1},
		value{"file_mapped", &s.MappedFile, 1}, value{"pgfault", &s.PageFaults, 1},
		value{"pgmajfault", &s.MajorPageFaults, 1})
	s.WorkingSet = s.Memory - min(s.Memory, inactive)
	if !all {
		return
	}
	s.MemoryLimit, s.MaxMemory = f.number("memory.max"), f.number("memory.peak")
	f.values("memory.events", value{"max", &s.MemoryFailures, 1}, value{"oom_kill", &s.OOMKills, 1})
}

// limited is a limit of v1, 0 if it is none: a page-rounded maximum of int64.
func limited(limit uint64) uint64 {
	if limit >= 1<<62 {
		return 0
	}
	return limit
}

// OOMKills counts the processes of the group that the kernel killed for lack
// of memory (memory.events on v2, memory.oom_control on v1 since Linux 4.13).
func (r *Root) OOMKills(path string) (uint64, error) {
	dir, file := r.dir2(path), "memory.events"
	if !r.on2("memory") {
		dir, file = r.dir1(path, cgroup1.Memory), "memory.oom_control"
	}
	if dir == "" {
		return 0, errors.New("the host has no memory controller")
	}
	f, err := inside(dir)
	if err != nil {
		return 0, err
	}
	defer f.close()
	var kills uint64
	f.values(file, value{"oom_kill", &kills, 1})
	return kills, nil
}
