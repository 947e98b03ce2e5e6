package process

import (
	"context"
	"os"
	"strconv"
	"syscall"
	"time"
)

const (
	// startTime is how long the start may take; until then timers are exact, and memory
	// is left alone.
	startTime = 5 * time.Second
	// look is how often the process is looked at: nothing tells that it has
	// nothing to do.
	look = time.Second
	// idleCPU is the CPU time between two looks of a process that idles.
	idleCPU = look / 20
	// looseSlack is how much later a timer of an idle process may fire,
	// exactSlack the kernel's default.
	looseSlack, exactSlack = 60 * time.Millisecond, 50 * time.Microsecond
)

// GatherTimers lets the kernel wake the process once for timers that lie close
// together, while it idles. The libraries keep a hundred a second, and each
// wake-up of an idle process costs more than what it is for. Requests are not
// delayed: they are no timers. The Go runtime's monitor is gathered too: it
// would look every 10 ms for the timers that are overdue. A busy process needs
// it on time, to take processors from threads that wait for the disk; so timers
// are exact from the first second with work in it.
func GatherTimers(ctx context.Context) {
	if !sleep(ctx, startTime) {
		return
	}
	idle, before := false, cpuTime()
	for sleep(ctx, look) {
		now := cpuTime()
		if idles := now-before < idleCPU; idles != idle {
			idle = idles
			setSlack(map[bool]time.Duration{true: looseSlack, false: exactSlack}[idle])
		}
		before = now
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// cpuTime is what the process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// setSlack sets the slack of every thread; new ones get that of the thread that
// starts them. It needs a kernel with it, and CAP_SYS_NICE; without them all is
// as it was.
func setSlack(d time.Duration) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range tasks {
		_ = os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", strconv.AppendInt(nil, d.Nanoseconds(), 10), 0)
	}
}
