package evict

import (
	"slices"
	"time"

	"github.com/shoal-project/shoal/agent/host"
)

// Waits is what the kernel has counted since boot.
type Waits struct {
	// Full is how long all tasks that had work to do waited for memory (psi(7): full).
	Full    time.Duration
	Reclaim host.Reclaim
}

// Stall tells, from one look to the next, for how much of a period the machine stood still
// for want of memory: what is in use is taken and read again, so that little else is done,
// while memory is still available by its numbers. It is pure: the time is given.
//
// Tasks that wait because their control group is at its limit count as waiting, too; on a
// machine with nothing else to do all tasks are waiting then. That is no matter of others,
// and neither is it a reason to end the group, which may take its time. So a wait counts
// only if what the machine has taken for itself explains it. Whether kswapd runs, or tasks
// have to reclaim, says nothing: they do wherever files are read that are larger than memory.
type Stall struct {
	// Share of the period, from 0 to 1, above which the machine is short of memory; 0: never.
	Share  float64
	Period time.Duration

	looks []stallLook // of the last period, after the one that it begins with
}

type stallLook struct {
	at time.Time
	Waits
}

const (
	// slowestRead is how long a task waits for a page at most, on a disk that turns.
	slowestRead = 20 * time.Millisecond
	// plenty is the part of memory that is available where nothing that runs lacks it: then
	// it is data that are read again, of a database that has more of them than memory, and
	// that may be so all day.
	plenty = 0.25
)

// Threshold has the node act on the signal.
func (s *Stall) Threshold() Threshold {
	return Threshold{Signal: MemoryStall, Keep: Amount{Share: 1 - s.Share}}
}

// Restart forgets what was: it does not count again.
func (s *Stall) Restart() { s.looks = nil }

// Step takes a look; memory is what is available of it now. The signal is, in nanoseconds,
// how much of the period was left to work; there is none before looks have gone on for one.
func (s *Stall) Step(now time.Time, w Waits, memory Signal) (Signal, bool) {
	if s.Share == 0 {
		return Signal{}, false
	}
	if n := len(s.looks); n > 0 && s.looks[n-1].jumps(now, w, s.Period) {
		s.Restart()
	}
	s.looks = append(s.looks, stallLook{now, w})
	begin := 0
	for i, l := range s.looks {
		if now.Sub(l.at) >= s.Period {
			begin = i
		}
	}
	s.looks = slices.Delete(s.looks, 0, begin)
	first, last := s.looks[0], s.looks[max(0, len(s.looks)-2)]
	span := now.Sub(first.at)
	if span < s.Period {
		return Signal{}, false
	}
	waited := min(w.Full-first.Full, span) // the files are read a moment after the clock
	goesOn := float64(w.Full-last.Full) >= s.Share*float64(now.Sub(last.at))
	lacks := float64(memory.Available) <= plenty*float64(memory.Capacity)
	if !goesOn || !lacks || !explains(w.Reclaim.Since(first.Reclaim), waited) {
		waited = 0
	}
	return Signal{Available: int64(span - waited), Capacity: int64(span)}, true
}

// jumps tells whether the numbers, or the clock, cannot be those of the time after a look.
func (l *stallLook) jumps(now time.Time, w Waits, slack time.Duration) bool {
	return w.Full < l.Full || w.Full-l.Full > now.Sub(l.at)+slack
}

// explains tells whether it is for the machine's want of memory that tasks waited for so
// long. A group at its limit gets a page for each one that is taken from it; so what came
// back beyond that was taken by the machine, if it took as much. That has to be most of
// what came back, and pages enough to wait for.
func explains(r host.Reclaimed, waited time.Duration) bool {
	back := min(r.Restored-min(r.Restored, r.Groups), r.Machine)
	return back*2 >= r.Restored && float64(back)*float64(slowestRead) >= float64(waited)
}
