package host

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process is what a process uses.
type Process struct {
	CPU               time.Duration // in and outside the kernel
	Resident, Virtual uint64        // bytes
	Files, MaxFiles   uint64        // open descriptors
	Started           time.Time
}

// Self is this process.
func Self() (Process, error) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return Process{}, err
	}
	p, err := parseStat(stat, BootTime())
	if err != nil {
		return Process{}, err
	}
	if dir, err := os.ReadDir("/proc/self/fd"); err == nil {
		p.Files = uint64(len(dir)) - 1 // without the directory's own
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		p.MaxFiles = limit.Cur
	}
	return p, nil
}

// parseStat reads /proc/PID/stat, proc_pid_stat(5). The second field, the name,
// may hold anything.
func parseStat(stat []byte, boot time.Time) (p Process, err error) {
	end := bytes.LastIndexByte(stat, ')')
	f := strings.Fields(string(stat[end+1:]))
	const state, utime, stime, start, vsize, rss = 3, 14, 15, 22, 23, 24 // fields in the manual
	if end < 0 || len(f) <= rss-state {
		return p, fmt.Errorf("unexpected form of /proc/self/stat: %d fields", len(f))
	}
	n := func(field int) (v uint64) {
		var bad error
		if v, bad = strconv.ParseUint(f[field-state], 10, 64); bad != nil {
			err = fmt.Errorf("unexpected form of /proc/self/stat: field %d: %w", field, bad)
		}
		return v
	}
	ticks := func(field int) time.Duration { return time.Duration(n(field)) * (time.Second / userHZ) }
	p = Process{
		CPU: ticks(utime) + ticks(stime), Virtual: n(vsize), Resident: n(rss) * uint64(os.Getpagesize()),
		Started: boot.Add(ticks(start)),
	}
	return p, err
}
