package pod

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// Offline starts pods from their records when the API is silent at the start of
// the agent: after a reboot without a coordinator in reach.
type Offline struct {
	// Synced is closed once the API was heard; nil: there is none.
	Synced <-chan struct{}
	Log    *slog.Logger

	cutOff atomic.Bool
}

// offlineAfter is how long the API may be silent before pods that do not run are
// started without it.
const offlineAfter = 3 * time.Second

// CutOff tells whether pods were started without the API.
func (o *Offline) CutOff() bool { return o.cutOff.Load() }

// Silent tells whether pods were started without the API and it is not heard since:
// what was kept is used then without asking, for each question would wait until a
// machine without power has not answered.
func (o *Offline) Silent() bool {
	select {
	case <-o.Synced:
		return false
	default:
		return o.CutOff()
	}
}

// Run waits for the API, and lets the pods of m start when it stays silent.
func (o *Offline) Run(ctx context.Context, m *Manager) error {
	select {
	case <-ctx.Done():
		return nil
	case <-o.Synced:
		m.PokeAll() // pods of manifests may wait for it
		return nil
	case <-time.After(offlineAfter):
	}
	o.Log.Info("the API is not heard: pods start from the checkpoint")
	o.cutOff.Store(true)
	m.Unhold()
	return nil
}
