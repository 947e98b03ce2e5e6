package csi

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/shoal-project/shoal/csi/csitest"
)

// TestRefreshed: a driver is asked again when it is due, and not before.
func TestRefreshed(t *testing.T) {
	d := &csitest.Driver{Name: "d"}
	var published []string
	all := &Drivers{
		Publish: func(_ context.Context, driver string, _ NodeInfo) error {
			published = append(published, driver)
			return nil
		},
		Withdraw: func(string) {},
	}
	if err := all.Register(t.Context(), "d", d.Serve(t), []string{"1.0.0"}); err != nil {
		t.Fatal(err)
	}
	period := time.Duration(0)
	r := &Refresher{Drivers: all, Log: slog.New(slog.DiscardHandler),
		Period: func(context.Context, string) time.Duration { return period }}
	asked := map[string]time.Time{}
	if next := r.ask(t.Context(), asked); !next.IsZero() || len(asked) > 0 {
		t.Errorf("a driver that wants nothing is asked at %v", next)
	}
	period = time.Hour
	next := r.ask(t.Context(), asked)
	if wait := time.Until(next); wait <= 0 || wait > period || !slices.Equal(published, []string{"d"}) {
		t.Errorf("asked %q, again in %v", published, wait)
	}
	asked["d"] = time.Now().Add(-period)
	r.ask(t.Context(), asked)
	if !slices.Equal(published, []string{"d", "d"}) || time.Since(asked["d"]) > period/2 {
		t.Errorf("asked %q, last at %v", published, asked["d"])
	}
	all.Deregister("d", all.drivers["d"].Endpoint)
	if next := r.ask(t.Context(), asked); !next.IsZero() || len(asked) > 0 {
		t.Errorf("a driver that is gone is asked at %v", next)
	}
}

// TestRefresherEnds with its context, and hears of changes.
func TestRefresherEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	looked := make(chan struct{}, 8)
	d := &csitest.Driver{Name: "d"}
	all := &Drivers{Publish: func(context.Context, string, NodeInfo) error { return nil }, Withdraw: func(string) {}}
	if err := all.Register(t.Context(), "d", d.Serve(t), []string{"1.0.0"}); err != nil {
		t.Fatal(err)
	}
	r := &Refresher{Drivers: all, Log: slog.New(slog.DiscardHandler)}
	r.Period = func(context.Context, string) time.Duration {
		looked <- struct{}{}
		return 0
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	for range 2 {
		select {
		case <-looked:
		case <-time.After(time.Minute):
			t.Fatal("it does not look")
		}
		r.Changed()
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
}
