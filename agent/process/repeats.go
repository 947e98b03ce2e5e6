package process

import (
	"strings"
	"sync"
	"time"
)

// maxRepeats bounds the messages that are remembered. Libraries have fewer.
const maxRepeats = 256

// Repeats makes a storm of one message two lines: its first, and how many more
// there were in the window that began with it. E is what a message is told with.
type Repeats[E any] struct {
	window time.Duration
	tell   func(last E, more int)

	mu  sync.Mutex
	all map[string]*repeated[E]
}

type repeated[E any] struct {
	last  E
	began time.Time
	more  int
	timer *time.Timer // runs while there is something to tell
}

// NewRepeats counts in windows, and has tell told of each that had more than its first.
func NewRepeats[E any](window time.Duration, tell func(last E, more int)) *Repeats[E] {
	return &Repeats[E]{window: window, tell: tell, all: map[string]*repeated[E]{}}
}

// First tells whether a message is to be told now. Those of one key are one.
func (r *Repeats[E]) First(key string, e E) bool {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.all[key]
	if m == nil || m.more == 0 && now.Sub(m.began) >= r.window {
		r.forget(now)
		if len(r.all) < maxRepeats {
			r.all[key] = &repeated[E]{began: now}
		}
		return true
	}
	m.last = e
	if m.more++; m.timer == nil {
		m.timer = time.AfterFunc(r.window-now.Sub(m.began), func() { r.end(key, m) })
	}
	return false
}

// forget makes room when it is needed.
func (r *Repeats[E]) forget(now time.Time) {
	if len(r.all) < maxRepeats {
		return
	}
	for key, m := range r.all {
		if m.more == 0 && now.Sub(m.began) >= r.window {
			delete(r.all, key)
		}
	}
}

// end closes a window.
func (r *Repeats[E]) end(key string, m *repeated[E]) {
	r.mu.Lock()
	if r.all[key] != m {
		r.mu.Unlock()
		return
	}
	delete(r.all, key)
	r.mu.Unlock()
	r.tell(m.last, m.more)
}

// Flush closes all windows.
func (r *Repeats[E]) Flush() {
	r.mu.Lock()
	all := r.all
	r.all = map[string]*repeated[E]{}
	r.mu.Unlock()
	for _, m := range all {
		if m.timer != nil {
			m.timer.Stop()
			r.tell(m.last, m.more)
		}
	}
}

// WithoutDigits is a key by which messages that differ in numbers alone are one.
func WithoutDigits(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' {
			return -1
		}
		return c
	}, s)
}
