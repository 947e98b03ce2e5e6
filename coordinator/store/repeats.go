package store

import (
	"strings"
	"sync"
	"time"

	"go.uber.org/zap/zapcore"
)

const (
	// repeatWindow begins with a message; its like are counted until it ends.
	repeatWindow = 10 * time.Second
	// maxRepeats bounds the messages that are remembered. etcd has fewer.
	maxRepeats = 256
)

// repeats makes a storm of one message two lines: its first, and how many more
// there were. Messages that differ in numbers alone are one.
type repeats struct {
	tell func(zapcore.Entry, map[string]any)

	mu  sync.Mutex
	all map[string]*repeated
}

type repeated struct {
	entry zapcore.Entry // the last
	began time.Time
	more  int
	timer *time.Timer // runs while there is something to tell
}

// first tells whether a message is to be told now.
func (r *repeats) first(e zapcore.Entry) bool {
	now, key := time.Now(), e.Level.String()+withoutDigits(e.Message)
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.all[key]
	if m == nil || m.more == 0 && now.Sub(m.began) >= repeatWindow {
		r.forget(now)
		if len(r.all) < maxRepeats {
			r.all[key] = &repeated{began: now}
		}
		return true
	}
	m.entry = e
	if m.more++; m.timer == nil {
		m.timer = time.AfterFunc(repeatWindow-now.Sub(m.began), func() { r.end(key, m) })
	}
	return false
}

// forget makes room when it is needed.
func (r *repeats) forget(now time.Time) {
	if len(r.all) < maxRepeats {
		return
	}
	for key, m := range r.all {
		if m.more == 0 && now.Sub(m.began) >= repeatWindow {
			delete(r.all, key)
		}
	}
}

// end closes a window.
func (r *repeats) end(key string, m *repeated) {
	r.mu.Lock()
	if r.all[key] != m {
		r.mu.Unlock()
		return
	}
	delete(r.all, key)
	r.mu.Unlock()
	r.count(m)
}

// flush closes all windows.
func (r *repeats) flush() {
	r.mu.Lock()
	all := r.all
	r.all = map[string]*repeated{}
	r.mu.Unlock()
	for _, m := range all {
		if m.timer != nil {
			m.timer.Stop()
			r.count(m)
		}
	}
}

func (r *repeats) count(m *repeated) {
	r.tell(m.entry, map[string]any{"more": m.more})
}

func withoutDigits(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' {
			return -1
		}
		return c
	}, s)
}
