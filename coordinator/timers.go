package main

import (
	"context"
	"os"
	"strconv"
	"time"
)

// settle is how long the start may take; until then timers are exact.
const settle = 5 * time.Second

// slack is how much later a timer of an idle process may fire.
const slack = 60 * time.Millisecond

// gatherTimers lets the kernel wake the process once for timers that lie close
// together. The libraries keep more than a hundred a second, the embedded
// etcd's and the watch caches' most of all, and each wake-up of an idle process
// costs more than what it is for. Requests are not delayed: they are no timers.
// New threads get the slack of the one that starts them. The second thread is
// the Go runtime's monitor, which takes processors from threads that wait for
// the disk: it must not sleep longer than it wants to.
func gatherTimers(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(settle):
	}
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
