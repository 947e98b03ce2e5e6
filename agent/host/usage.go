package host

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// proc is where the kernel tells of itself.
const proc = "/proc"

// meminfo is what is taken from /proc/meminfo, in bytes.
type meminfo struct{ total, available, swap, swapFree int64 }

func memory(proc string) (meminfo, error) {
	data, err := os.ReadFile(filepath.Join(proc, "meminfo"))
	if err != nil {
		return meminfo{}, err
	}
	var m meminfo
	fields := map[string]*int64{"MemTotal:": &m.total, "MemAvailable:": &m.available, "SwapTotal:": &m.swap,
		"SwapFree:": &m.swapFree}
	for l := range bytes.Lines(data) {
		f := bytes.Fields(l)
		if len(f) < 2 || fields[string(f[0])] == nil {
			continue
		}
		if kib, err := strconv.ParseInt(string(f[1]), 10, 64); err == nil {
			*fields[string(f[0])] = kib << 10
		}
	}
	return m, nil
}

// MemoryAvailable is the kernel's estimate of what can still be taken; 0 when it
// gives none.
func MemoryAvailable() int64 {
	m, err := memory(proc)
	if err != nil {
		return 0
	}
	return m.available
}

// Overcommits tells whether the kernel gives programs all the memory that they reserve, whether
// it is there or not (proc_sys_vm(5), overcommit_memory).
func Overcommits() bool { return line("/proc/sys/vm/overcommit_memory") == "1" }

// Swap is what is free and what is used of the machine's swap, in bytes; false where that
// is not told.
func Swap() (free, used uint64, ok bool) {
	m, err := memory(proc)
	if err != nil {
		return 0, 0, false
	}
	return uint64(m.swapFree), uint64(m.swap - m.swapFree), true
}

// DefaultInterface is the name of the interface that the default route of IPv4 goes by, ""
// where there is none (/proc/net/route).
func DefaultInterface() string { return defaultInterface(proc) }

func defaultInterface(proc string) string {
	data, err := os.ReadFile(filepath.Join(proc, "self", "net", "route"))
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(data) {
		// Interface, destination, gateway, flags, uses, metric, mask.
		if f := bytes.Fields(line); len(f) > 7 && string(f[1]) == "00000000" && string(f[7]) == "00000000" {
			return string(f[0])
		}
	}
	return ""
}

// Pages are the machine's pages of memory: what processes have that is no file's,
// in bytes, and how often one was not there, since boot.
type Pages struct{ Anonymous, Faults, MajorFaults uint64 }

// ReadPages tells of the pages of memory.
func ReadPages() (Pages, error) { return pages(proc) }

func pages(proc string) (p Pages, err error) {
	fields := map[string]*uint64{"nr_anon_pages": &p.Anonymous, "pgfault": &p.Faults, "pgmajfault": &p.MajorFaults}
	err = vmstat(proc, func(name string, n uint64) {
		if fields[name] != nil {
			*fields[name] = n
			delete(fields, name)
		}
	})
	if err != nil {
		return p, err
	}
	if len(fields) > 0 {
		return p, fmt.Errorf("%s/vmstat lacks %d numbers", proc, len(fields))
	}
	p.Anonymous *= uint64(os.Getpagesize())
	return p, nil
}

// Tasks are the machine's processes and threads.
type Tasks struct {
	// Count is how many there are.
	Count int64
	// MaxPID and MaxThreads are the kernel's limits (proc(5): kernel/pid_max,
	// kernel/threads-max).
	MaxPID, MaxThreads int64
}

// Limit is how many there can be.
func (t Tasks) Limit() int64 { return min(t.MaxPID, t.MaxThreads) }

// ReadTasks counts them.
func ReadTasks() (Tasks, error) { return tasks(proc) }

func tasks(proc string) (Tasks, error) {
	var t Tasks
	var err error
	if t.MaxPID, err = number(filepath.Join(proc, "sys/kernel/pid_max")); err != nil {
		return t, err
	}
	if t.MaxThreads, err = number(filepath.Join(proc, "sys/kernel/threads-max")); err != nil {
		return t, err
	}
	data, err := os.ReadFile(filepath.Join(proc, "loadavg"))
	if err != nil {
		return t, err
	}
	f := bytes.Fields(data) // three averages, running/all, the last PID
	if len(f) < 4 {
		return t, fmt.Errorf("loadavg: unexpected format %q", data)
	}
	_, all, _ := bytes.Cut(f[3], []byte("/"))
	if t.Count, err = strconv.ParseInt(string(all), 10, 64); err != nil {
		return t, fmt.Errorf("loadavg: %w", err)
	}
	return t, nil
}

func number(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(bytes.TrimSpace(data)), 10, 64)
}

// userHZ is the unit of /proc/stat, fixed on Linux.
const userHZ = 100

// CPUTime is the time that all CPUs were busy since boot, in nanoseconds.
func CPUTime() (uint64, error) { return cpuTime(proc) }

func cpuTime(proc string) (uint64, error) {
	data, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return 0, err
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	f := bytes.Fields(line)
	var sum uint64
	for i := 1; i < len(f) && i <= 8; i++ {
		if i == 4 || i == 5 {
			continue // idle and iowait
		}
		n, err := strconv.ParseUint(string(f[i]), 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum * (1e9 / userHZ), nil
}

// BootTime is when the machine started, zero if that is not known.
func BootTime() time.Time {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(t.Nano())).Truncate(time.Second)
}
