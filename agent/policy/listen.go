package policy

import (
	"context"
	"errors"

	"github.com/shoal-project/shoal/agent/feed"
	"github.com/shoal-project/shoal/agent/policyfeed"
)

// listen hears what coordinators tell until ctx ends. While none is in reach, what was
// told last counts.
func (e *Engine) listen(ctx context.Context) {
	var group []*policyfeed.Update
	feed.Follow(ctx, feed.Source[policyfeed.Update]{
		Open:   e.cfg.Feed,
		Reader: policyfeed.NewReader,
		Hear: func(_ context.Context, u *policyfeed.Update, first bool) error {
			if first {
				group = nil // of a stream that broke within one
			}
			if u.Empty() && len(group) == 0 {
				return nil
			}
			if group = append(group, u); !u.More {
				e.take(group, heard)
				group = nil
			}
			return nil
		},
		Least: retryMin,
		Most:  retryMax,
		Failed: func(err error) bool {
			if !errors.Is(err, ErrNoFeed) {
				return false
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.noFeed = true
			e.proceed()
			e.ask()
			return true
		},
		Tell: func(err error) {
			e.log.Warn("network policies are not followed for now; those that are known stay enforced", "err", err)
		},
	})
}

// take has updates count together.
func (e *Engine) take(group []*policyfeed.Update, now phase) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, u := range group {
		e.pending.add(e.compiler.world, u, e.cfg.Node)
	}
	if now != heard {
		return
	}
	if e.cfg.File != "" {
		e.record.unsaved = append(e.record.unsaved, group...)
	}
	if e.phase != heard {
		e.phase, e.noFeed = heard, false
		e.proceed()
	}
	e.ask()
}
