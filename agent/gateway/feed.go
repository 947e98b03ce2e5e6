package gateway

import (
	"context"
	"time"

	"github.com/shoal-project/shoal/agent/feed"
	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// listen hears what coordinators tell until ctx ends. While none is in reach, what was
// told last counts.
func (m *Manager) listen(ctx context.Context, out chan<- *gatewayfeed.Config) {
	feed.Follow(ctx, feed.Source[gatewayfeed.Update]{
		Open:   m.cfg.Feed,
		Reader: gatewayfeed.NewReader,
		Hear: func(ctx context.Context, u *gatewayfeed.Update, _ bool) error {
			if u.Config == nil {
				return nil
			}
			select {
			case out <- u.Config:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		Least: 250 * time.Millisecond,
		Most:  15 * time.Second,
		Tell: func(err error) {
			m.log.Warn("Gateways and Ingresses are not followed for now; what is known goes on", "err", err)
		},
	})
}
