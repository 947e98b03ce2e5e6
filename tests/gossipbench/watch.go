package main

import (
	"context"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
)

// lookAfter is how long changes gather before a view is read, so that looking costs
// little beside the gossip: there are as many pairs as the square of the members. Times
// are exact all the same, for a member tells since when a state holds.
func lookAfter(members int) time.Duration {
	return min(max(20*time.Millisecond, time.Duration(members)*4*time.Millisecond), 2*time.Second)
}

// seen is what one member believes of another.
type seen struct {
	up    bool
	since time.Time
}

// alarm is one member calling another dead that lives.
type alarm struct {
	by, about string
	at        time.Time
}

// watcher compares what members believe with what is so.
type watcher struct {
	size   int
	mu     sync.Mutex
	views  map[string]map[string]seen // observer, subject
	died   map[string]time.Time       // those that do not live
	alarms []alarm
}

func newWatcher(size int) *watcher {
	return &watcher{size: size, views: map[string]map[string]seen{}, died: map[string]time.Time{}}
}

// follow reads a member's view whenever it changes, until its life ends.
func (w *watcher) follow(ctx context.Context, name string, g *gossip.Group) {
	changed := g.Changed()
	w.begin(name)
	for {
		w.read(name, g.Members())
		select {
		case <-ctx.Done():
			w.end(name)
			return
		case <-changed:
			time.Sleep(lookAfter(w.size))
		}
	}
}

func (w *watcher) begin(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.views[name] = map[string]seen{}
}

func (w *watcher) end(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.views, name)
}

func (w *watcher) read(by string, members []gossip.Member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	view := w.views[by]
	if view == nil {
		return
	}
	for _, m := range members {
		old, known := view[m.Name]
		now := seen{up: m.State.Up(), since: m.Since}
		if known && old == now {
			continue
		}
		view[m.Name] = now
		// Alive since later than alive before: it was called dead in between.
		if flapped := known && old.up && now.up; !now.up || flapped {
			w.judge(alarm{by, m.Name, m.Since})
		}
	}
}

// judge keeps what is not so. The caller holds w.mu.
func (w *watcher) judge(a alarm) {
	if _, dead := w.died[a.about]; !dead {
		w.alarms = append(w.alarms, a)
	}
}

func (w *watcher) kill(name string, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.died[name] = at
}

func (w *watcher) revive(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.died, name)
}

// times lists after how long those that live had the state of subject that is
// asked for; missing is how many have it not.
func (w *watcher) times(subject string, up bool, from time.Time) (after map[string]time.Duration, missing int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	after = map[string]time.Duration{}
	for by, view := range w.views {
		if _, dead := w.died[by]; dead || by == subject {
			continue
		}
		if s, ok := view[subject]; ok && s.up == up {
			after[by] = s.since.Sub(from)
		} else {
			missing++
		}
	}
	return after, missing
}

// known tells whether all that live see a member as alive, and it sees as many.
func (w *watcher) known(name string, size int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, view := range w.views {
		if !view[name].up {
			return false
		}
	}
	return len(w.views[name]) >= size
}

// complete tells whether as many members live, and each sees all as alive.
func (w *watcher) complete(size int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.views) != size {
		return false
	}
	for _, view := range w.views {
		if len(view) != size {
			return false
		}
		for _, s := range view {
			if !s.up {
				return false
			}
		}
	}
	return true
}

// since lists alarms from a time on.
func (w *watcher) since(from time.Time) (out []alarm) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.alarms {
		if a.at.After(from) {
			out = append(out, a)
		}
	}
	return out
}

// state counts pairs of members by what the first believes of the second.
func (w *watcher) state() (up, down int, example string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for by, view := range w.views {
		for about, s := range view {
			if s.up {
				up++
			} else {
				down++
				example = by + " of " + about
			}
		}
	}
	return up, down, example
}

// take returns the alarms since it was asked last.
func (w *watcher) take() []alarm {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.alarms
	w.alarms = nil
	return out
}
