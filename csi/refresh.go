package csi

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Refresher asks drivers again what they say of this node, as often as they want:
// the volumes that the node can have may become fewer. It sleeps while no driver
// wants that.
type Refresher struct {
	Drivers *Drivers
	// Period is how often a driver wants to be asked, 0 for never.
	Period func(ctx context.Context, driver string) time.Duration
	Log    *slog.Logger

	once sync.Once
	wake chan struct{}
}

func (r *Refresher) waker() chan struct{} {
	r.once.Do(func() { r.wake = make(chan struct{}, 1) })
	return r.wake
}

// Changed has it look again which drivers there are, and what they want.
func (r *Refresher) Changed() {
	select {
	case r.waker() <- struct{}{}:
	default:
	}
}

// Run asks until ctx ends.
func (r *Refresher) Run(ctx context.Context) error {
	asked := map[string]time.Time{}
	for {
		next := r.ask(ctx, asked)
		var due <-chan time.Time
		if !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.waker():
		case <-due:
		}
	}
}

// ask asks those who are due, and returns when the next is. A driver that is new
// was asked when it registered.
func (r *Refresher) ask(ctx context.Context, asked map[string]time.Time) (next time.Time) {
	there := map[string]bool{}
	for _, name := range r.Drivers.Names() {
		there[name] = true
		period := r.Period(ctx, name)
		if period <= 0 {
			delete(asked, name)
			continue
		}
		now := time.Now()
		if asked[name].IsZero() {
			asked[name] = now
		}
		if !now.Before(asked[name].Add(period)) {
			asked[name] = now
			if err := r.Drivers.Refresh(ctx, name); err != nil && ctx.Err() == nil {
				r.Log.Debug("a storage driver is asked again later", "driver", name, "err", err)
			}
		}
		if due := asked[name].Add(period); next.IsZero() || due.Before(next) {
			next = due
		}
	}
	for name := range asked {
		if !there[name] {
			delete(asked, name)
		}
	}
	return next
}
