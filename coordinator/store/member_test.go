package store

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"
)

// A store whose log must be replayed elects itself when that is done, at once.
// (raft asked before that looked into entries that were compacted.)
func TestElectAfterReplay(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for round := range 8 {
		s, err := Open(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 1200 / (1 + 7*min(round, 1)) {
			if _, err := s.client.Put(ctx, fmt.Sprintf("/k%d-%d", round, i), "v"); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := s.client.Client.Get(ctx, "/k0-7"); err != nil || len(got.Kvs) != 1 {
			t.Fatalf("round %d: %v, %v", round, got, err)
		}
		s.Close()
	}
}

// A first start that is cut short at any moment is no obstacle to the next.
func TestFirstStartCutShort(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range 12 {
		cfg := Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
		s, err := Open(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * time.Millisecond)
		s.Close()
		if s, err = Open(ctx, cfg); err != nil {
			t.Fatal(err)
		}
		if _, err := s.client.Put(ctx, "/k", "v"); err != nil {
			t.Fatalf("cut after %d ms: %v", i, err)
		}
		s.Close()
	}
}
