package gossip

import (
	"crypto/sha256"
	"sync"
	"time"
)

const (
	// repeatFor is how long a message that was let through is not looked at again. In a
	// large group each member hears each word of another some dozens of times. Memberlist
	// may lose a message when its queue is full, so that the same must pass again soon.
	repeatFor = time.Second
	// maxRepeats bounds the messages that are known.
	maxRepeats = 4096
)

// repeats are the alive messages that memberlist got lately, by their hash.
type repeats struct {
	mu   sync.Mutex
	seen map[[sha256.Size]byte]repeat
}

type repeat struct {
	name string
	at   time.Time
}

// member is whose message b is, when the same was let through a moment ago.
func (r *repeats) member(b []byte, now time.Time) (name string, ok bool) {
	hash := sha256.Sum256(b)
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.seen[hash]
	return s.name, ok && now.Sub(s.at) < repeatFor
}

// note keeps that b was let through.
func (r *repeats) note(b []byte, name string, now time.Time) {
	hash := sha256.Sum256(b)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[[sha256.Size]byte]repeat{}
	}
	if len(r.seen) >= maxRepeats {
		r.drop(now)
	}
	if len(r.seen) < maxRepeats {
		r.seen[hash] = repeat{name, now}
	}
}

// tidy drops what is not repeated any more.
func (r *repeats) tidy(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(now)
}

func (r *repeats) drop(now time.Time) {
	for hash, s := range r.seen {
		if now.Sub(s.at) >= repeatFor {
			delete(r.seen, hash)
		}
	}
}

// repeated tells whether memberlist had an alive message a moment ago, and would do
// nothing with it: the member is up, and nothing new is said of it.
func (g *Group) repeated(b []byte) bool {
	name, ok := g.repeats.member(b, time.Now())
	if !ok || name == g.cfg.Name {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.members[name].State.Up()
}
