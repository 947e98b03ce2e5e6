package gossip

import (
	"encoding/base64"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
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
		open     bool
	}{
		"nothing":              {},
		"certificate_missing":  {key: key},
		"insecure_without_key": {insecure: true, open: true},
		"insecure_with_key":    {key: key, insecure: true, open: true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{
				Name:          "n",
				BindPort:      -1,
				AdvertiseAddr: "192.0.2.1",
				Join:          []string{"192.0.2.2"},
				Log:           slog.New(slog.DiscardHandler),
			}
			err := cfg.Secure(Security{
				KeyFile:  tt.key,
				Insecure: tt.insecure,
				Identity: func() (*Identity, Trust, error) { return nil, nil, errors.New("no kubeconfig") },
			})
			if err != nil {
				t.Fatal(err)
			}
			g, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			at, err := netip.ParseAddrPort(g.Addr())
			if err != nil || at.Addr().IsLoopback() == tt.open ||
				tt.open != (len(cfg.Join) == 1) || tt.open != (cfg.BindAddr == "") {
				t.Errorf("at %s, binds %q, joins %v, %v", g.Addr(), cfg.BindAddr, cfg.Join, err)
			}
		})
	}
}
