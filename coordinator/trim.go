package main

import (
	"bufio"
	"context"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The process trims once it has settled, then now and then: bursts of work
// leave memory behind too, and nothing tells when they are over.
const (
	settle    = 5 * time.Second
	trimEvery = 3 * time.Minute
)

// trim gives back what only the start, or a burst, needed: freed heap, and the
// pages of the binary. Code that runs again is mapped again from the page
// cache, at the price of a minor fault.
func trim(ctx context.Context) {
	for wait := settle; ; wait = trimEvery {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		gatherTimers()
		debug.FreeOSMemory()
		for _, m := range binaryMappings() {
			// Nothing there is the process's own, so that a failure only keeps memory.
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED)
		}
	}
}

// slack is how much later a timer of an idle process may fire.
const slack = 20 * time.Millisecond

// gatherTimers lets the kernel wake the process once for timers that lie close
// together. The libraries keep more than a hundred a second, the embedded
// etcd's and the watch caches' most of all, and each wake-up of an idle process
// costs more than what it is for. Requests are not delayed: they are no timers.
// New threads get the slack of the one that starts them. The second thread is
// the Go runtime's monitor, which takes processors from threads that wait for
// the disk: it must not sleep longer than it wants to.
func gatherTimers() {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for i, t := range tasks {
		if i == 1 {
			continue
		}
		// Needs a kernel with it, and CAP_SYS_NICE; without them all is as it was.
		_ = os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", strconv.AppendInt(nil, slack.Nanoseconds(), 10), 0)
	}
}

type mapping struct{ start, end uintptr }

// binaryMappings returns the read-only mappings of the executable of which no
// page was ever written (smaps: Anonymous 0).
func binaryMappings() []mapping {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	var out []mapping
	var current mapping
	candidate := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 6 && strings.Contains(fields[0], "-"):
			current, candidate = parseMapping(fields[0])
			candidate = candidate && fields[5] == exe && strings.HasPrefix(fields[1], "r-")
		case len(fields) == 3 && fields[0] == "Anonymous:" && candidate && fields[1] == "0":
			out = append(out, current)
		}
	}
	return out
}

func parseMapping(s string) (mapping, bool) {
	a, b, _ := strings.Cut(s, "-")
	start, err := strconv.ParseUint(a, 16, 64)
	if err != nil {
		return mapping{}, false
	}
	end, err := strconv.ParseUint(b, 16, 64)
	return mapping{start: uintptr(start), end: uintptr(end)}, err == nil
}
