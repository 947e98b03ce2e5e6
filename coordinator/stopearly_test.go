package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/shoal-project/shoal/coordinator/config"
)

// TestStopDuringStart: whenever a start is stopped, it ends soon and well.
func TestStopDuringStart(t *testing.T) {
	for _, after := range []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond,
		500 * time.Millisecond, time.Second} {
		cfg := config.Default()
		cfg.DataDir, cfg.Port, cfg.GossipPort = t.TempDir(), freePort(t), 0
		cfg.BindAddress, cfg.AdvertiseAddress = "127.0.0.1", "127.0.0.1"
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, cfg, slog.New(slog.DiscardHandler)) }()
		time.Sleep(after)
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("stopped after %v: %v", after, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("stopped after %v: it goes on", after)
		}
	}
}
