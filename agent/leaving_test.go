package main

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/gossip/gossiptest"
)

// TestLeaving: neighbours hear of a node that leaves for good, and of no restart.
func TestLeaving(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		network := gossiptest.New()
		member := func(name, ip string) *gossip.Group {
			g, err := gossip.New(gossip.Config{Name: name, Join: []string{"10.0.0.1"},
				Transport: network.Transport(name, ip), Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		stays := member("stays", "10.0.0.1")
		all, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- stays.Run(all) }()
		state := func(name string) gossip.State {
			for _, m := range stays.Members() {
				if m.Name == name {
					return m.State
				}
			}
			return "unknown"
		}
		mark := func(cfg *config.Config) {
			if err := os.WriteFile(cfg.LeavingMark(), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, tt := range []struct {
			name, ip string
			marks    bool
			want     gossip.State
		}{{"restarts", "10.0.0.2", false, gossip.StateDead}, {"leaves", "10.0.0.3", true, gossip.StateLeft}} {
			cfg := config.Default()
			cfg.DataDir = dir
			mark(&cfg) // of an earlier try
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- runGossip(ctx, &cfg, member(tt.name, tt.ip)) }()
			time.Sleep(time.Minute)
			if got := state(tt.name); got != gossip.StateAlive || leaves(&cfg) {
				t.Errorf("%s is %s; the mark of an earlier try is there: %t", tt.name, got, leaves(&cfg))
			}
			if tt.marks {
				mark(&cfg)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
			if got := state(tt.name); got != tt.want {
				t.Errorf("%s is %s, want %s", tt.name, got, tt.want)
			}
		}
		stop()
		<-ended
		time.Sleep(time.Minute) // memberlist's own goroutines end with their timers
	})
}
