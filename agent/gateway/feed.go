package gateway

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// silence is how long a coordinator may say nothing; it says something each
// gatewayfeed.Beat. retryMost is the longest pause before the next try.
const (
	silence   = 3 * gatewayfeed.Beat
	retryMost = 15 * time.Second
)

// listen hears what coordinators tell until ctx ends. While none is in reach, what was
// told last counts.
func (m *Manager) listen(ctx context.Context, out chan<- *gatewayfeed.Config) {
	delay, told := time.Duration(0), false
	for ctx.Err() == nil {
		began := time.Now()
		err := m.hear(ctx, out)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > retryMost {
			delay, told = 0, false
			if errors.Is(err, io.EOF) {
				continue // as it does from time to time
			}
		}
		if !told {
			told = true
			m.log.Warn("Gateways and Ingresses are not followed for now; what is known goes on", "err", err)
		}
		delay = min(max(2*delay, 250*time.Millisecond), retryMost)
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
}

// hear reads one stream to its end.
func (m *Manager) hear(ctx context.Context, out chan<- *gatewayfeed.Config) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := m.cfg.Feed(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	r := gatewayfeed.NewReader(stream)
	for {
		u, err := r.Read()
		if err != nil {
			return err
		}
		quiet.Reset(silence)
		if u.Config == nil {
			continue
		}
		select {
		case out <- u.Config:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
