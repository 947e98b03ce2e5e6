package store

import (
	"context"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/storage"
)

const (
	// askedFor is how long watches are asked for their progress before they count as stalled:
	// else they tell within milliseconds. Readers wait three seconds for it.
	askedFor = time.Second
	// askedWithin is the longest pause between two requests of one reader that waits: the
	// library asks each tenth of a second.
	askedWithin = 300 * time.Millisecond
	// stalledKey is written where watches are stalled.
	stalledKey = "/shoal/progress"
)

// stalled finds watches that etcd does not tell how far they have come, though they are
// asked. It tells none of a stream while one of the stream's watches waits for a revision
// that is yet to come, as a new one does until the next write. Where the next write waits
// for a reader itself (an admission policy refuses all until its parameters have been read),
// neither would come: a key of our own is written.
type stalled struct {
	write func(ctx context.Context) error

	mu sync.Mutex
	// first and last are the requests of a row without a pause, written is when the key was.
	first, last, written time.Time
}

// ask notes a request, and writes if there has been no answer for long.
func (s *stalled) ask(ctx context.Context, now time.Time) {
	s.mu.Lock()
	if now.Sub(s.last) > askedWithin {
		s.first = now
	}
	s.last = now
	write := now.Sub(s.first) >= askedFor && now.Sub(s.written) >= askedFor
	if write {
		s.written = now
	}
	s.mu.Unlock()
	if write {
		ctx, cancel := context.WithTimeout(ctx, askedFor)
		defer cancel()
		_ = s.write(ctx) // if it fails it is tried again, if somebody still asks
	}
}

// watched is etcd as its watch cache asks it.
type watched struct {
	storage.Interface
	stalled *stalled
}

// EnableResourceSizeEstimation does nothing: the library would look through each cache
// once a minute to estimate what lists cost, and have etcd tell its revision to all of
// them. Flow control counts for itself.
func (watched) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// RequestWatchProgress has the watches of this process tell how far they have come.
func (w watched) RequestWatchProgress(ctx context.Context) error {
	w.stalled.ask(ctx, time.Now())
	return w.Interface.RequestWatchProgress(ctx)
}
