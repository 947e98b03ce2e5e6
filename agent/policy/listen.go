package policy

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/shoal-project/shoal/agent/policyfeed"
)

// silence is how long a coordinator may say nothing; it says something each
// policyfeed.Beat.
const silence = 3 * policyfeed.Beat

var errEnded = errors.New("the coordinator ended the stream")

// listen hears what coordinators tell until ctx ends. While none is in reach, what was
// told last counts.
func (e *Engine) listen(ctx context.Context) {
	delay := time.Duration(0)
	told := false
	for ctx.Err() == nil {
		began := time.Now()
		err := e.hear(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > retryMax {
			delay, told = 0, false
			if errors.Is(err, errEnded) {
				continue // as it does from time to time
			}
		}
		if errors.Is(err, ErrNoFeed) {
			e.mu.Lock()
			e.noFeed = true
			e.proceed()
			e.ask()
			e.mu.Unlock()
			delay = retryMax
		}
		if !told {
			told = true
			e.log.Warn("network policies are not followed for now; those that are known stay enforced", "err", err)
		}
		delay = min(max(2*delay, retryMin), retryMax)
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
}

// hear reads one stream to its end.
func (e *Engine) hear(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := e.cfg.Feed(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	r := policyfeed.NewReader(stream)
	var group []*policyfeed.Update
	for {
		u, err := r.Read()
		if errors.Is(err, io.EOF) {
			return errEnded
		}
		if err != nil {
			return err
		}
		quiet.Reset(silence)
		if u.Empty() && len(group) == 0 {
			continue
		}
		if group = append(group, u); !u.More {
			e.take(group, heard)
			group = nil
		}
	}
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
