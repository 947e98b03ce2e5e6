package main

import (
	"encoding/base64"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/gossip"
)

// Without a key, or without a certificate to prove the node's name with, the
// gossip is not to be heard beyond the machine, unless the configuration says so.
func TestGossipStaysOnTheMachine(t *testing.T) {
	key := filepath.Join(t.TempDir(), "gossip.key")
	if err := os.WriteFile(key, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		key      string
		insecure bool
		rest     *rest.Config
		open     bool
	}{
		"nothing":                  {},
		"certificate_missing":      {key: key, rest: &rest.Config{BearerToken: "x"}},
		"kubeconfig_missing":       {key: key},
		"key_missing":              {rest: &rest.Config{}},
		"insecure_without_key":     {insecure: true, open: true},
		"insecure_and_certificate": {key: key, insecure: true, rest: &rest.Config{}, open: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := config.Default()
			a := &agent{cfg: &c, log: slog.New(slog.DiscardHandler), rest: tt.rest}
			a.cfg.GossipKeyFile, a.cfg.GossipInsecure = tt.key, tt.insecure
			cfg := gossip.Config{Name: "n", BindPort: -1, AdvertiseAddr: "192.0.2.1", Join: []string{"192.0.2.2"}}
			if err := a.secureGossip(&cfg); err != nil {
				t.Fatal(err)
			}
			g, err := gossip.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			at, err := netip.ParseAddrPort(g.Addr())
			if err != nil || at.Addr().IsLoopback() == tt.open || tt.open != (len(cfg.Join) == 1) || tt.open != (cfg.BindAddr == "") {
				t.Errorf("at %s, binds %q, joins %v, %v", g.Addr(), cfg.BindAddr, cfg.Join, err)
			}
		})
	}
}
