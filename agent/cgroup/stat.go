package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Stats is what one group uses. Memory counts are bytes.
type Stats struct {
	Time            time.Time
	CPUNanos        uint64 // total CPU time
	ThrottledNanos  uint64
	Periods         uint64 // CFS periods that had runnable tasks
	Throttled       uint64 // periods in which the quota ran out
	Memory          uint64 // usage with page cache
	MemoryLimit     uint64 // 0 = no limit
	WorkingSet      uint64 // usage without inactive page cache
	RSS             uint64 // anonymous memory
	Swap            uint64
	PageFaults      uint64
	MajorPageFaults uint64
	Pids            uint64
	PidsLimit       uint64 // 0 = no limit
	OOMKills        uint64
	// Stalls by resource, nil where the kernel does not tell.
	CPUStall, MemoryStall, IOStall *Pressure
}

// Available is what is left of the memory limit, 0 without a limit.
func (s Stats) Available() uint64 {
	if s.MemoryLimit == 0 || s.WorkingSet > s.MemoryLimit {
		return 0
	}
	return s.MemoryLimit - s.WorkingSet
}

// noLimit is above any real limit: v1 reports "none" as a page-rounded
// maximum of int64.
const noLimit = uint64(1) << 62

// Stat reads the usage of the group. A controller that the host does not
// have leaves its fields zero; a group that does not exist is an error
// (fs.ErrNotExist).
func (r *Root) Stat(path string) (Stats, error) {
	s := Stats{Time: time.Now()}
	if _, err := os.Stat(r.main(path)); err != nil {
		return s, fmt.Errorf("stat cgroup %s: %w", path, err)
	}
	r.statCPU(path, &s)
	r.statMemory(path, &s)
	if dir := r.dir("pids", path); dir != "" {
		s.Pids = number(dir, "pids.current")
		s.PidsLimit = number(dir, "pids.max")
	}
	s.OOMKills, _ = r.OOMKills(path)
	if r.unified != "" {
		dir := filepath.Join(r.unified, path)
		s.CPUStall, s.MemoryStall, s.IOStall = stall(dir, "cpu.pressure"), stall(dir, "memory.pressure"), stall(dir, "io.pressure")
	}
	return s, nil
}

func (r *Root) statCPU(path string, s *Stats) {
	if r.on2("cpu") {
		m := keyed(r.dir("cpu", path), "cpu.stat")
		s.CPUNanos = m["usage_usec"] * 1000
		s.ThrottledNanos = m["throttled_usec"] * 1000
		s.Periods, s.Throttled = m["nr_periods"], m["nr_throttled"]
		return
	}
	if dir := r.dir("cpuacct", path); dir != "" {
		s.CPUNanos = number(dir, "cpuacct.usage")
	}
	if dir := r.dir("cpu", path); dir != "" {
		m := keyed(dir, "cpu.stat")
		s.ThrottledNanos = m["throttled_time"]
		s.Periods, s.Throttled = m["nr_periods"], m["nr_throttled"]
	}
}

func (r *Root) statMemory(path string, s *Stats) {
	dir := r.dir("memory", path)
	if dir == "" {
		return
	}
	m := keyed(dir, "memory.stat")
	inactive := m["inactive_file"]
	if r.on2("memory") {
		s.Memory = number(dir, "memory.current")
		s.MemoryLimit = number(dir, "memory.max")
		s.Swap = number(dir, "memory.swap.current")
		s.RSS = m["anon"]
		s.PageFaults, s.MajorPageFaults = m["pgfault"], m["pgmajfault"]
	} else {
		s.Memory = number(dir, "memory.usage_in_bytes")
		s.MemoryLimit = number(dir, "memory.limit_in_bytes")
		s.RSS, s.Swap = m["total_rss"], m["total_swap"]
		s.PageFaults, s.MajorPageFaults = m["total_pgfault"], m["total_pgmajfault"]
		inactive = m["total_inactive_file"]
	}
	if s.MemoryLimit >= noLimit {
		s.MemoryLimit = 0
	}
	s.WorkingSet = s.Memory - min(s.Memory, inactive)
}

// OOMKills counts the processes of the group that the kernel killed for lack
// of memory (memory.events on v2, memory.oom_control on v1 since Linux 4.13).
func (r *Root) OOMKills(path string) (uint64, error) {
	file := "memory.oom_control"
	if r.on2("memory") {
		file = "memory.events"
	}
	dir := r.dir("memory", path)
	if dir == "" {
		return 0, errors.New("the host has no memory controller")
	}
	if _, err := os.Stat(dir); err != nil {
		return 0, err
	}
	return keyed(dir, file)["oom_kill"], nil
}

// PSI is one line of a pressure file: averages in percent, total in
// microseconds.
type PSI struct {
	Avg10, Avg60, Avg300 float64
	Total                uint64
}

// Pressure is the stall information of one resource (psi(7)).
type Pressure struct{ Some, Full PSI }

// HostStall is the stall information of cpu, memory or io for the whole host,
// nil if the kernel has none.
func HostStall(resource string) *Pressure { return stall("/proc/pressure", resource) }

// stall reads one file; EOPNOTSUPP means that it was turned off at boot.
func stall(dir, file string) *Pressure {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil
	}
	p := parsePressure(b)
	return &p
}

func parsePressure(b []byte) Pressure {
	var p Pressure
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		psi := PSI{Avg10: percent(f[1]), Avg60: percent(f[2]), Avg300: percent(f[3])}
		_, total, _ := strings.Cut(f[4], "=")
		psi.Total, _ = strconv.ParseUint(total, 10, 64)
		if f[0] == "some" {
			p.Some = psi
		} else {
			p.Full = psi
		}
	}
	return p
}

func percent(field string) float64 {
	_, v, _ := strings.Cut(field, "=")
	f, _ := strconv.ParseFloat(v, 64)
	return f
}

// number reads a file with one number; "max" and a missing file are 0.
func number(dir, file string) uint64 {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	v, _ := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	return v
}

// keyed reads a file of "key value" lines.
func keyed(dir, file string) map[string]uint64 {
	m := map[string]uint64{}
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return m
	}
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		k, v, _ := strings.Cut(sc.Text(), " ")
		m[k], _ = strconv.ParseUint(v, 10, 64)
	}
	return m
}
