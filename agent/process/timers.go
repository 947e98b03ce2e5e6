package process

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
	// idleSlack is how much later a timer of an idle process may fire, busySlack one of
	// a busy process, which waits for its disk and has others wait.
	idleSlack, busySlack = 60 * time.Millisecond, 250 * time.Microsecond
	// agentSlack is that of a process that mostly waits for the kernel.
	agentSlack = time.Millisecond
	// exactSlack is the kernel's default (PR_SET_TIMERSLACK in prctl(2)).
	exactSlack = 50 * time.Microsecond
)

// GatherTimers lets the kernel wake the process once for timers that lie close
// together, while it idles. The libraries keep a hundred a second, and each
// wake-up of an idle process costs more than what it is for. Requests are not
// delayed: they are no timers. The Go runtime's monitor is gathered too: it
// would look every 10 ms for the timers that are overdue. A busy process needs
// it soon, to take processors from threads that wait for the disk; so timers
// are as good as exact from the first second with work in it.
func GatherTimers(ctx context.Context) {
	if !sleep(ctx, startTime) {
		return
	}
	idle, before := false, cpuTime()
	for sleep(ctx, look) {
		now := cpuTime()
		if idles := now-before < idleCPU; idles != idle {
			idle = idles
			setSlack(map[bool]time.Duration{true: idleSlack, false: busySlack}[idle])
		}
		before = now
	}
}

// LoosenTimers lets timers of the process fire a millisecond later, from now on. After each
// wake-up the Go runtime's monitor looks every 20 microseconds for what it could do, and
// each look of a process that does little costs more than what it finds. Programs
// inherit the slack: those whose timers are not ours to loosen are started by Start.
func LoosenTimers() { setSlack(agentSlack) }

// Start is cmd.Start for a program of others: its timers are as exact as the kernel's
// default, whatever those of this process are.
func Start(cmd *exec.Cmd) error {
	runtime.LockOSThread() // a program has the slack of the thread that starts it
	defer runtime.UnlockOSThread()
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil || slack == int(exactSlack) {
		return cmd.Start()
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(exactSlack), 0, 0, 0); err != nil {
		return cmd.Start()
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0) }() // what it was
	return cmd.Start()
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
