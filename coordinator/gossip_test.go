package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// TestGrantsFollowEachOther: a coordinator that starts again with the clock set back is given
// a grant that others take in the place of the one before.
func TestGrantsFollowEachOther(t *testing.T) {
	s := parts{cfg: config.Config{DataDir: t.TempDir()}}
	if err := os.MkdirAll(s.cfg.StateDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if err := keys(s.cfg).Ensure(pki.Cluster{Domain: "cluster.local"}, now); err != nil {
		t.Fatal(err)
	}
	ca, err := keys(s.cfg).CA()
	if err != nil {
		t.Fatal(err)
	}
	var last time.Time
	for _, ahead := range []time.Duration{0, time.Second, 24 * time.Hour, 0, time.Second, 48 * time.Hour, -time.Hour} {
		id, err := gossip.NewIdentity()
		if err != nil {
			t.Fatal(err)
		}
		raw, err := s.grantOf("coordinator:a", id, ca, now.Add(ahead))
		if err != nil {
			t.Fatal(err)
		}
		g, err := gossip.OpenGrant("coordinator:a", raw, gossip.Trust{ca.Cert}, now)
		if err != nil || !g.Issued.After(last) {
			t.Errorf("with the clock %v ahead it is of %v, the one before of %v; %v", ahead, g.Issued, last, err)
		}
		last = g.Issued
	}
	id, err := gossip.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	full := parts{cfg: config.Config{DataDir: filepath.Join(t.TempDir(), "none")}, log: slog.New(slog.DiscardHandler)}
	if _, err := full.grantOf("coordinator:a", id, ca, now); err != nil {
		t.Errorf("where nothing can be written: %v", err)
	}
}
