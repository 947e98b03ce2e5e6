package network

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/cni/podnet"
)

type fakeFirewall struct{ opened atomic.Bool }

func (f *fakeFirewall) Open()        { f.opened.Store(true) }
func (f *fakeFirewall) Close() error { f.opened.Store(false); return nil }

// A firewall is open from when something of the own network is made until it is taken
// away; a third party's is none of its business.
func TestFirewallFollowsTheOwnNetwork(t *testing.T) {
	f := &fakeFirewall{}
	conf := t.TempDir()
	m := New(Config{ConfDir: conf, BinDir: t.TempDir(), CacheDir: t.TempDir(),
		StateDir: filepath.Join(t.TempDir(), "cni"), Firewalld: f})
	open := func(when string, want bool) {
		t.Helper()
		if got := f.opened.Load(); got != want {
			t.Errorf("%s: open %v", when, got)
		}
	}
	open("at first", false)
	if err := m.SetPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")}); err != nil {
		t.Fatal(err)
	}
	open("with a bridge", true)
	if err := m.Cleanup(); err != nil {
		t.Fatal(err)
	}
	open("cleaned up", false)
	s := podnet.Sandbox{ID: "a", IfName: "eth0", NetNS: nstest.New(t)}
	if _, err := m.Setup(context.Background(), s); err == nil {
		t.Error("a pod without a network is set up")
	}
	open("without a range of pods", false)
	if err := os.WriteFile(filepath.Join(conf, "10.conflist"),
		[]byte(`{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"other"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m.third.load()
	if m.Name() != "other" {
		t.Fatalf("the network is %q", m.Name())
	}
	if err := m.SetPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")}); err != nil {
		t.Fatal(err)
	}
	m.repair()
	open("with a third party's network", false)
}
