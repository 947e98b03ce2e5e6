package network

import (
	"context"
	"errors"
	"time"
)

// tidyTries is how often DEL of lost sandboxes and GC are tried. A plugin that fails so
// often is asked again when the configurations change or the agent starts.
const tidyTries = 8

// tidying is what Follow knows of what third parties' plugins have of sandboxes that
// are gone: those that a crash or a reboot took.
type tidying struct {
	seen  string // the configuration at the last look
	done  string // the one that GC was done with
	lost  bool   // DEL was done for what the cache has
	tries int
	pause time.Duration
	told  string
}

// tidyUp has the plugins free what belongs to no sandbox: what the agent's record
// knows of by DEL, once, and what only they know of by GC (CNI 1.1), at the start and
// with every configuration that is new. It returns when to try again; 0: not by itself.
func (f *follower) tidyUp(ctx context.Context) time.Duration {
	list, conf := f.third.current(), ""
	if list != nil {
		conf = string(list.Bytes)
	}
	t := &f.tidy
	if conf != t.seen {
		t.seen, t.tries, t.pause = conf, 0, 0
	}
	collect := list != nil && conf != t.done
	if t.lost && !collect || t.tries == tidyTries {
		return 0
	}
	limited, cancel := context.WithTimeout(ctx, gcTime)
	defer cancel()
	var errs []error
	if !t.lost {
		err := f.third.lost(limited, f.live)
		t.lost = err == nil
		errs = append(errs, err)
	}
	if collect {
		err := f.third.gc(limited, list, f.live)
		if err == nil {
			t.done = conf
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil && ctx.Err() == nil {
		return f.untidy(err)
	}
	t.told, t.tries, t.pause = "", 0, 0
	return 0
}

// untidy tells of an error, and returns when to try again.
func (f *follower) untidy(err error) time.Duration {
	t := &f.tidy
	if !errors.Is(err, errInUse) {
		t.tries++
		if text := err.Error(); text != t.told {
			t.told = text
			f.log.Warn("plugins may have addresses of pods that are gone", "dir", f.cfg.ConfDir, "err", err)
		}
	}
	t.pause = min(max(2*t.pause, f.timing.first), f.timing.last)
	return t.pause
}

// live are the sandboxes that have a network, or may get one.
func (f *follower) live() []string {
	ids, _ := f.sandboxes.Connected()
	return append(ids, f.holds.ids()...) // after: one that is stopped meanwhile is held
}

// soonest is the shorter of two pauses, where 0 is none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
