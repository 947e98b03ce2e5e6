package store

import (
	"time"

	"k8s.io/utils/clock"
)

// beatClock is the clock of the watch caches. Each of them has a timer of a
// little more than a second, jittered, that looks for watches to which a
// bookmark is due. Here they all fire together, once a second: an idle process
// with fifty caches wakes up once for them, not fifty times.
type beatClock struct {
	clock.RealClock
	start time.Time
}

// beat is the time between two wake-ups; a timer that is shorter is not moved.
const beat = time.Second

func newBeatClock() beatClock { return beatClock{start: time.Now()} }

// NewTimer returns a timer that fires at the beat nearest to its end.
func (c beatClock) NewTimer(d time.Duration) clock.Timer {
	return &beatTimer{Timer: c.RealClock.NewTimer(c.toBeat(time.Now(), d)), clock: c}
}

// toBeat returns how long from now the beat nearest to now+d is.
func (c beatClock) toBeat(now time.Time, d time.Duration) time.Duration {
	if d < beat {
		return d
	}
	since := now.Sub(c.start)
	return (since + d).Round(beat) - since
}

type beatTimer struct {
	clock.Timer
	clock beatClock
}

// Reset moves the timer to the beat nearest to d from now.
func (t *beatTimer) Reset(d time.Duration) bool { return t.Timer.Reset(t.clock.toBeat(time.Now(), d)) }
