package network

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/cni"
)

// talk is a gossip that tells of this node, and answers where it is seen.
type talk struct {
	group
	meta gossip.Meta
	seen map[string]netip.Addr
}

func (t *talk) UpdateMeta(change func(*gossip.Meta)) error { change(&t.meta); return nil }

func (t *talk) SeenAs(_ context.Context, member string) (netip.Addr, error) {
	if a, ok := t.seen[member]; ok {
		return a, nil
	}
	return netip.Addr{}, errors.New("no answer")
}

func tunnelsIn(dir string, encrypt bool) *tunnels {
	return &tunnels{cfg: Tunnels{Encrypt: encrypt, KeyFile: filepath.Join(dir, "key"),
		PeersFile: filepath.Join(dir, "peers"), Port: 51820}, poke: func() {}}
}

func memberAt(name, at string, state gossip.State, key string) gossip.Member {
	return gossip.Member{Name: name, State: state, NodeIPs: []netip.Addr{netip.MustParseAddr(at)},
		Meta: gossip.Meta{Role: gossip.RoleAgent, Tunnel: key, TunnelPort: 51820, Encrypts: key != ""}}
}

// TestKeyWhenNeeded: a node has a key, and tells it, when it encrypts or another is behind
// address translation, and not before.
func TestKeyWhenNeeded(t *testing.T) {
	dir := t.TempDir()
	self := memberAt("self", "192.0.2.1", gossip.StateAlive, "")
	self.Local = true
	other := memberAt("other", "198.51.100.1", gossip.StateAlive, "")
	g := &talk{group: group{self, other}}
	tun := tunnelsIn(dir, false)
	peers := []cni.Peer{{Name: "other"}}
	if _, err := tun.fill(g, g.group, peers); err != nil || g.meta.Tunnel != "" || peers[0].Self.HasKey {
		t.Errorf("without need: %v, %q, %+v", err, g.meta.Tunnel, peers[0])
	}
	var first gossip.Meta
	if err := tun.cfg.Introduce(&first); err != nil || first != (gossip.Meta{}) {
		t.Errorf("without need the first words are %+v, %v", first, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("files without need: %v", left)
	}
	g.group[1].Seen = netip.MustParseAddrPort("203.0.113.7:40000")
	got, err := tun.fill(g, g.group, peers)
	public := got.Key.PublicKey()
	if err != nil || g.meta.Tunnel != string(public[:]) || g.meta.TunnelPort != 51820 || g.meta.Encrypts {
		t.Errorf("another is hidden: %v, %+v", err, g.meta)
	}
	if inner := cni.InnerKey(got.Key).PublicKey(); g.meta.Inner != string(inner[:]) {
		t.Errorf("the key of the inner tunnel is told as %x", g.meta.Inner)
	}
	if p := peers[0]; !p.Self.HasKey || !p.End.Hidden || p.End.HasKey || p.Seen != netip.MustParseAddr("203.0.113.7") {
		t.Errorf("another is hidden: %+v", p)
	}
	if info, err := os.Stat(filepath.Join(dir, "key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key: %v, %v", info, err)
	}
	if err := tunnelsIn(dir, false).cfg.Introduce(&first); err != nil || first.Tunnel != g.meta.Tunnel {
		t.Errorf("the first words after a restart have no key: %v, %+v", err, first)
	}
	again, err := tunnelsIn(dir, false).fill(g, g.group, peers)
	if err != nil || again.Key != got.Key {
		t.Errorf("after a restart the key is another: %v", err)
	}
	old := time.Now().Add(-keyAge - time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "key"), old, old); err != nil {
		t.Fatal(err)
	}
	renewed, err := tun.fill(g, g.group, peers)
	public = renewed.Key.PublicKey()
	if err != nil || renewed.Key == got.Key || g.meta.Tunnel != string(public[:]) {
		t.Errorf("an old key is not renewed, or not told: %v", err)
	}
}

// TestClockSetBack: a node whose clock was set back has another key, and tells it; a node
// without a key has none then either.
func TestClockSetBack(t *testing.T) {
	dir := t.TempDir()
	m := New(Config{Log: slog.New(slog.DiscardHandler), Tunnels: tunnelsIn(dir, true).cfg})
	m.ClockSetBack()
	select {
	case <-m.wake:
		t.Error("without a key something is to be done")
	default:
	}
	self := memberAt("self", "192.0.2.1", gossip.StateAlive, "")
	self.Local = true
	g := &talk{group: group{self}}
	before, err := m.tunnels.fill(g, g.group, nil)
	if err != nil || before.Key == (cni.Key{}) {
		t.Fatalf("no key: %v", err)
	}
	m.ClockSetBack()
	select {
	case <-m.wake:
	default:
		t.Error("the tunnels are not looked at")
	}
	after, err := m.tunnels.fill(g, g.group, nil)
	public := after.Key.PublicKey()
	if err != nil || after.Key == before.Key || g.meta.Tunnel != string(public[:]) {
		t.Errorf("the key is the same, or not told: %v", err)
	}
}

// TestLastWords: after a restart of the agent tunnels are as they were for members that
// are not heard yet. Who is heard again is what it says.
func TestLastWords(t *testing.T) {
	dir := t.TempDir()
	key := strings.Repeat("k", 32)
	self := memberAt("self", "192.0.2.1", gossip.StateAlive, "")
	self.Local = true
	hidden := memberAt("hidden", "10.0.0.1", gossip.StateAlive, key)
	hidden.Seen = netip.MustParseAddrPort("203.0.113.7:40000")
	g := &talk{group: group{self, memberAt("other", "198.51.100.1", gossip.StateAlive, key), hidden}}
	peers := []cni.Peer{{Name: "hidden"}, {Name: "other"}}
	if _, err := tunnelsIn(dir, true).fill(g, g.group, peers); err != nil {
		t.Fatal(err)
	}
	unheard := group{self, memberAt("other", "198.51.100.1", gossip.StateUnheard, ""),
		memberAt("hidden", "10.0.0.1", gossip.StateUnheard, "")}
	after := []cni.Peer{{Name: "hidden"}, {Name: "other"}}
	restarted := tunnelsIn(dir, true)
	if _, err := restarted.fill(g, unheard, after); err != nil {
		t.Fatal(err)
	}
	for i := range after {
		before := peers[i]
		before.Since = time.Time{}
		if after[i].Key != before.Key || after[i].End != before.End || after[i].Self != before.Self ||
			after[i].Seen != before.Seen || after[i].Port != before.Port {
			t.Errorf("before the restart %+v\nafter it          %+v", before, after[i])
		}
	}
	heard := group{self, memberAt("other", "198.51.100.1", gossip.StateAlive, "")}
	if _, err := restarted.fill(g, heard, after[1:]); err != nil || after[1].End.HasKey || after[1].End.Encrypts {
		t.Errorf("who says that it has no tunnel: %+v, %v", after[1], err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "peers")); err != nil || strings.Contains(string(data), "hidden") {
		t.Errorf("a member that is forgotten stays in the file: %s, %v", data, err)
	}
}

// TestAskWhereSeen: members that no network leads to directly are asked once where they
// see this node.
func TestAskWhereSeen(t *testing.T) {
	self := memberAt("self", "10.0.0.1", gossip.StateAlive, "")
	self.Local = true
	g := &talk{
		group: group{self, memberAt("far", "198.51.100.1", gossip.StateAlive, ""),
			memberAt("near", "10.0.0.2", gossip.StateAlive, ""), memberAt("old", "198.51.100.3", gossip.StateAlive, "")},
		seen: map[string]netip.Addr{"far": netip.MustParseAddr("203.0.113.9"), "near": netip.MustParseAddr("203.0.113.9")},
	}
	tun := tunnelsIn(t.TempDir(), false)
	poked := make(chan struct{}, 10)
	tun.poke = func() { poked <- struct{}{} }
	paths := map[string]cni.Path{"far": cni.VXLAN, "near": cni.Direct, "old": cni.VXLAN}
	tun.look(t.Context(), g, g.group, paths)
	tun.wg.Wait()
	peers := []cni.Peer{{Name: "far"}, {Name: "near"}, {Name: "old"}}
	if _, err := tun.fill(g, g.group, peers); err != nil {
		t.Fatal(err)
	}
	if !peers[0].Self.Hidden || peers[1].Self.Hidden || peers[2].Self.Hidden || len(poked) != 1 {
		t.Errorf("hidden to far %v, near %v, old %v; told %d times",
			peers[0].Self, peers[1].Self, peers[2].Self, len(poked))
	}
	// A hidden one cannot be asked: what others see counts.
	g.group[3].Seen = netip.MustParseAddrPort("203.0.113.8:40000")
	if _, err := tun.fill(g, g.group, peers); err != nil || !peers[2].Self.Hidden || !peers[2].End.Hidden {
		t.Errorf("to one that is hidden: %+v, %v", peers[2], err)
	}
	tun.look(t.Context(), g, g.group, paths)
	tun.wg.Wait()
	if len(poked) != 1 {
		t.Error("they were asked again")
	}
}
