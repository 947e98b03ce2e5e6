package problem

import (
	"fmt"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/host"
)

const (
	// clockLimit is how far the clocks of node and coordinator may be apart: certificates
	// and tokens count from five minutes before they are made.
	clockLimit = 10 * time.Second
	// clockStep is the smallest jump that is told: time servers correct less at once.
	clockStep = time.Second
	// clockFreeFor is how long nothing keeps the clock right before that is told: the
	// kernel says so for a moment after each step, too.
	clockFreeFor = 15 * time.Minute
)

// clock compares this machine's clock with the coordinator's, and with what keeps it.
type clock struct {
	mu      sync.Mutex
	known   bool          // the coordinator's was heard
	off     time.Duration // at least; positive: ahead of the coordinator's
	steady  bool          // it was kept right since the agent began
	free    time.Time     // since when it is not
	instant host.Instant
}

// heard takes what the coordinator's clock showed, to the second, between two moments of
// this one's, and tells whether that changes anything. An answer that took long proves
// nothing of small differences.
func (c *clock) heard(shown, sent, received time.Time) (changed bool) {
	ahead, behind := sent.Sub(shown.Add(time.Second)), shown.Sub(received) // at least
	c.mu.Lock()
	defer c.mu.Unlock()
	wasKnown, was := c.known, c.off
	c.known = true
	switch {
	case ahead >= clockLimit:
		c.off = ahead
	case behind >= clockLimit:
		c.off = -behind
	case received.Sub(shown) < clockLimit && shown.Add(time.Second).Sub(sent) < clockLimit:
		c.off = 0 // at most
	default:
		c.known = wasKnown
	}
	if (was > 0) == (c.off > 0) && (was < 0) == (c.off < 0) && (c.off-was).Abs() < clockLimit {
		c.off = was // what is shown stays the same
	}
	return was != c.off || wasKnown != c.known
}

// kept takes whether something keeps the clock right.
func (c *clock) kept(yes bool, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case yes:
		c.steady, c.free = true, time.Time{}
	case c.steady && c.free.IsZero():
		c.free = now
	}
}

// set takes both clocks after one was set, and returns by how much; 0 for so little that
// nobody need know.
func (c *clock) set(now host.Instant) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.instant
	c.instant = now
	c.free = time.Time{} // counted from the last step
	step := now.Wall.Sub(was.Wall) - (now.Boot - was.Boot)
	if was.Wall.IsZero() || step.Abs() < clockStep {
		return 0
	}
	return step
}

// state is the reason of the condition, "" when all is well.
func (c *clock) state(now time.Time) (reason, message string, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.off != 0:
		return reasonClockDiffers, fmt.Sprintf("the clock is %v or more %s the coordinator's; "+
			"see that a time service runs on both machines",
			c.off.Abs().Truncate(clockLimit), direction(c.off, "ahead of", "behind")), true
	case !c.free.IsZero() && now.Sub(c.free) >= clockFreeFor:
		return reasonClockFree, "nothing keeps the clock right any more (the kernel has it as not synchronized): " +
			"see that a time service runs", c.known
	}
	return "", "", c.known
}

func direction(d time.Duration, forward, back string) string {
	if d < 0 {
		return back
	}
	return forward
}
