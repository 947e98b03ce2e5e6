package members

import (
	"context"
	"time"
)

const (
	// lookEvery: that nothing comes from somebody is no event.
	lookEvery = 10 * time.Second
	// patience is how long a newcomer may be silent before it is forgotten: longer than
	// its machine takes to start, or the network to come back.
	patience = 5 * time.Minute
)

// Forget removes newcomers that do not come, or stopped before they had a vote, so that
// they keep nobody else from joining. It runs on each coordinator; the one that leads
// the store knows who is silent.
func (s *Server) Forget(ctx context.Context) {
	silent := map[uint64]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookEvery):
		}
		s.forget(ctx, silent, time.Now())
	}
}

// forget notes since when members are silent, and removes those that are for too long. Who
// was expected after a restore and has its vote is expected no more: if it is removed later,
// by way of whichever coordinator, it stays out.
func (s *Server) forget(ctx context.Context, silent map[uint64]time.Time, now time.Time) {
	still := map[uint64]bool{}
	for _, m := range s.Store.Inactive() {
		still[m.ID] = true
		since, known := silent[m.ID]
		if !known {
			silent[m.ID] = now
			continue
		}
		if now.Sub(since) < patience {
			continue
		}
		if err := s.Store.Remove(ctx, m.ID); err == nil {
			s.Log.Warn("a coordinator that was to join did not come, and is forgotten: it has to join again",
				"name", m.Name, "address", m.URL, "silent", now.Sub(since).Round(time.Second))
		}
	}
	for _, e := range s.Expected() {
		if votes(s.Store.Members(), e.URL) {
			_ = s.Unexpect(e.Name) // or the next time
		}
	}
	for id := range silent {
		if !still[id] {
			delete(silent, id)
		}
	}
}
