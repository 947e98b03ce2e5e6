package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/containerd/cgroups/v3/cgroup2/stats"

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
func (r *Root) Stat(path string) (Stats, error) {
	s := Stats{Time: time.Now()}
	if _, err := os.Stat(r.main(path)); err != nil {
		return s, fmt.Errorf("stat cgroup %s: %w", path, err)
	}
	if len(r.v1) > 0 {
		r.stat1(path, &s)
	}
	if r.unified != "" {
		r.stat2(path, &s)
	}
	return s, nil
}

// stat1 reads what v1 measures. What cannot be read is left out: the group may
// be disappearing.
func (r *Root) stat1(path string, s *Stats) {
	cg, err := r.group1(path, cgroup1.Cpu, cgroup1.Cpuacct, cgroup1.Memory, cgroup1.Pids)
	if err != nil {
		return
	}
	m, err := cg.Stat(func(error) error { return nil })
	if err != nil {
		return
	}
	usage := m.GetCPU().GetUsage()
	s.CPUNanos, s.UserNanos, s.SystemNanos = usage.GetTotal(), usage.GetUser(), usage.GetKernel()
	throttling := m.GetCPU().GetThrottling()
	s.ThrottledNanos, s.Periods, s.Throttled = throttling.GetThrottledTime(), throttling.GetPeriods(),
		throttling.GetThrottledPeriods()
	s.Pids, s.PidsLimit = m.GetPids().GetCurrent(), m.GetPids().GetLimit()
	memory := m.GetMemory()
	s.Memory, s.MemoryLimit = memory.GetUsage().GetUsage(), limited(memory.GetUsage().GetLimit())
	s.WorkingSet = s.Memory - min(s.Memory, memory.GetTotalInactiveFile())
	s.RSS, s.Swap = memory.GetTotalRSS(), memory.GetSwap().GetUsage()
	s.Cache, s.MappedFile = memory.GetTotalCache(), memory.GetTotalMappedFile()
	s.MaxMemory, s.MemoryFailures = memory.GetUsage().GetMax(), memory.GetUsage().GetFailcnt()
	s.PageFaults, s.MajorPageFaults = memory.GetTotalPgFault(), memory.GetTotalPgMajFault()
	s.OOMKills = m.GetMemoryOomControl().GetOomKill()
}

// stat2 reads what cgroup2 measures: stalls, and the use of its controllers.
func (r *Root) stat2(path string, s *Stats) {
	group, err := r.group2(path)
	if err != nil {
		return
	}
	m, err := group.StatFiltered(r.measured())
	if err != nil {
		m = &stats.Metrics{} // it is disappearing
	}
	if cpu := m.GetCPU(); cpu != nil {
		s.CPUNanos, s.ThrottledNanos = cpu.GetUsageUsec()*1000, cpu.GetThrottledUsec()*1000
		s.UserNanos, s.SystemNanos = cpu.GetUserUsec()*1000, cpu.GetSystemUsec()*1000
		s.Periods, s.Throttled = cpu.GetNrPeriods(), cpu.GetNrThrottled()
	}
	if memory := m.GetMemory(); memory != nil {
		s.Memory, s.MemoryLimit = memory.GetUsage(), limited(memory.GetUsageLimit())
		s.WorkingSet = s.Memory - min(s.Memory, memory.GetInactiveFile())
		s.RSS, s.Swap = memory.GetAnon(), memory.GetSwapUsage()
		s.Cache, s.MappedFile, s.MaxMemory = memory.GetFile(), memory.GetFileMapped(), memory.GetMaxUsage()
		s.MemoryFailures = m.GetMemoryEvents().GetMax()
		s.PageFaults, s.MajorPageFaults = memory.GetPgfault(), memory.GetPgmajfault()
		s.OOMKills = m.GetMemoryEvents().GetOomKill()
	}
	if pids := m.GetPids(); pids != nil {
		s.Pids, s.PidsLimit = pids.GetCurrent(), limited(pids.GetLimit())
	}
	dir := filepath.Join(r.unified, path)
	s.CPUStall = host.ReadPressure(filepath.Join(dir, "cpu.pressure"))
	s.MemoryStall = host.ReadPressure(filepath.Join(dir, "memory.pressure"))
	s.IOStall = host.ReadPressure(filepath.Join(dir, "io.pressure"))
}

// measured is what cgroup2 measures on this host.
func (r *Root) measured() (mask cgroup2.StatMask) {
	if r.mode == V2 { // the core counts CPU time also without the controller
		mask |= cgroup2.StatCPU
	}
	for controller, stat := range map[string]cgroup2.StatMask{
		"cpu": cgroup2.StatCPU, "memory": cgroup2.StatMemory | cgroup2.StatMemoryEvents, "pids": cgroup2.StatPids,
	} {
		if r.on2(controller) {
			mask |= stat
		}
	}
	return mask
}

// limited is a limit, 0 if it is none: v2 tells the maximum of uint64, v1 a
// page-rounded maximum of int64.
func limited(limit uint64) uint64 {
	if limit >= 1<<62 {
		return 0
	}
	return limit
}

// OOMKills counts the processes of the group that the kernel killed for lack
// of memory (memory.events on v2, memory.oom_control on v1 since Linux 4.13).
func (r *Root) OOMKills(path string) (uint64, error) {
	if r.on2("memory") {
		m, err := r.group2(path)
		if err != nil {
			return 0, err
		}
		if _, err := os.Stat(r.main(path)); err != nil { // the library counts none
			return 0, err
		}
		st, err := m.StatFiltered(cgroup2.StatMemoryEvents)
		return st.GetMemoryEvents().GetOomKill(), err
	}
	if len(r.pick(cgroup1.Memory)) == 0 {
		return 0, errors.New("the host has no memory controller")
	}
	cg, err := r.group1(path, cgroup1.Memory)
	if err != nil {
		return 0, err
	}
	st, err := cg.Stat()
	return st.GetMemoryOomControl().GetOomKill(), err
}
