package stats

import (
	"sync"
	"time"
)

// rateWindow is how far apart two readings are at least that a rate is taken of.
const rateWindow = 10 * time.Second

// reading is a time of CPUs at one moment, in nanoseconds.
type reading struct {
	at    time.Time
	nanos uint64
}

// rates remembers readings by what they are of, so that each tells how much was used a
// second of late. Nothing is read for it: who asks seldom gets the mean of a long time.
type rates struct {
	mu   sync.Mutex
	last map[string][2]reading // an older one, and one that is to take its place
}

// of is the rate in nanoseconds a second up to now: since a reading that is rateWindow old,
// or since the beginning, whose time may be zero; false where there is neither.
func (r *rates) of(key string, began time.Time, now reading) (uint64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[string][2]reading{}
	}
	have, ok := r.last[key]
	if ok && now.nanos < have[1].nanos {
		ok = false // it began anew
	}
	if !ok {
		have = [2]reading{{at: began}, now}
	} else if now.at.Sub(have[1].at) >= rateWindow {
		have = [2]reading{have[1], now}
	}
	r.last[key] = have
	from := have[0]
	past := now.at.Sub(from.at)
	if from.at.IsZero() || past <= 0 {
		return 0, false
	}
	return uint64(float64(now.nanos-from.nanos) / past.Seconds()), true
}

// keep forgets all that is not of these.
func (r *rates) keep(keys map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.last {
		if !keys[key] {
			delete(r.last, key)
		}
	}
}
