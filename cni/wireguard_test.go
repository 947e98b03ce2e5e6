package cni

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/nstest"
)

// tunnelProgram builds shoal-tunnel.
func tunnelProgram(t testing.TB) string {
	t.Helper()
	if kernelHasWireGuard() {
		return ""
	}
	file := filepath.Join(t.TempDir(), "shoal-tunnel")
	build := exec.Command("go", "build", "-o", file, "./shoal-tunnel")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is shipped
	out, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("build shoal-tunnel: %v: %s", err, out)
	}
	return file
}

// kernelHasWireGuard: then the tests are of that, and shoal-tunnel's alone left out.
func kernelHasWireGuard() bool {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "probe-wg"
	l := &netlink.Wireguard{LinkAttrs: attrs}
	return netlink.LinkAdd(l) == nil && netlink.LinkDel(l) == nil
}

func newKey(t testing.TB) Key {
	t.Helper()
	k, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// encrypted is routed with keys on both sides.
func encrypted(t testing.TB, n *Network) (a, b site, router string) {
	t.Helper()
	a, b, router = routed(t, n, 1500)
	program := tunnelProgram(t)
	a.net.cfg.Overlay.Program, a.net.cfg.Overlay.Socket = program, filepath.Join(t.TempDir(), "a.sock")
	b.net.cfg.Overlay.Program, b.net.cfg.Overlay.Socket = program, filepath.Join(t.TempDir(), "b.sock")
	a.key, b.key = newKey(t), newKey(t)
	return a, b, router
}

// from is what another site, encrypting, is to this one.
func (s site) encrypts() Peer {
	p := s.peer()
	p.Key, p.Port = s.key.PublicKey(), DefaultWireGuardPort
	p.Self, p.End = End{HasKey: true, Encrypts: true}, End{HasKey: true, Encrypts: true}
	return p
}

// TestWireGuard: pods reach another node's by a tunnel whose packets show nothing of
// them; a new key is taken without connections that end; nothing is left in the end.
func TestWireGuard(t *testing.T) { // NET-2
	n := newNetwork(t)
	a, b, router := encrypted(t, n)
	pod, r := attach(t, n, "a")
	serve(t, b.ns, ":80")
	a.sync(t, b.encrypts())
	b.sync(t, a.encrypts())
	const there = "10.244.8.1:80"
	if got, err := ask(t, pod.NetNS, there); err != nil || got != r.Addrs[0].String() {
		t.Fatalf("a pod to another node's: %q, %v; want its own address %s", got, err, r.Addrs[0])
	}
	if got, err := ask(t, "", there); err != nil || got != "10.244.7.1" {
		t.Errorf("the node to another node's pod: %q, %v", got, err)
	}
	if err := sendMuch(t, pod.NetNS, b.ns, "10.244.8.1:81"); err != nil {
		t.Error("many bytes:", err)
	}
	// The router sees UDP between the nodes and nothing else.
	run(t, router, "nft", "add table ip seen; add chain ip seen f { type filter hook forward priority 0; }; "+
		"add rule ip seen f udp dport 51820 counter; add rule ip seen f ip saddr 10.244.0.0/16 counter drop")
	if _, err := ask(t, pod.NetNS, there); err != nil {
		t.Error(err)
	}
	out := run(t, router, "nft", "list", "table", "ip", "seen")
	if !strings.Contains(out, "/16 counter packets 0") ||
		strings.Contains(out, "dport 51820 counter packets 0") {
		t.Errorf("on the way: %s", out)
	}
	links := run(t, "", "ip", "-o", "link", "show", n.wireguardName())
	a.sync(t, b.encrypts())
	if again := run(t, "", "ip", "-o", "link", "show", n.wireguardName()); again != links {
		t.Errorf("the tunnel was made anew:\n%s%s", links, again)
	}

	a.key = newKey(t)
	a.sync(t, b.encrypts())
	b.sync(t, a.encrypts())
	began := time.Now()
	if _, err := ask(t, pod.NetNS, there); err != nil {
		t.Error("after a node took another key:", err)
	}
	t.Logf("with another key after %s", time.Since(began))

	a.sync(t)
	b.sync(t)
	for _, s := range []site{a, b} {
		if out := run(t, s.ns, "ip", "link"); strings.Contains(out, "-wg") {
			t.Errorf("interfaces left: %s", out)
		}
		if _, err := os.Stat(s.net.cfg.Overlay.Socket); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("socket left: %v", err)
		}
	}
}

// TestWireGuardTranslated: a node behind a router that translates addresses speaks first,
// and then both reach each other's pods.
func TestWireGuardTranslated(t *testing.T) { // NET-2
	n := newNetwork(t)
	a, b, router := encrypted(t, n)
	run(t, router, "nft", "add table ip nat; add chain ip nat out { type nat hook postrouting priority 100; }; "+
		"add rule ip nat out iifname r1 masquerade random; "+
		"add chain ip nat in { type filter hook forward priority 0; }; "+
		"add rule ip nat in oifname r1 ct state established accept; add rule ip nat in oifname r1 drop")
	if err := n.Ensure(); err != nil {
		t.Fatal(err)
	}
	serve(t, "", "10.244.7.1:80")
	serve(t, b.ns, ":80")
	toB, toA := b.encrypts(), a.encrypts()
	toB.Self, toB.End = End{HasKey: true}, End{HasKey: true, Hidden: true}
	toB.Seen = netip.MustParseAddr("192.0.2.254")
	toA.Self, toA.End = End{HasKey: true, Hidden: true}, End{HasKey: true}
	toA.Since = time.Now()
	a.sync(t, toB)
	b.sync(t, toA)
	if _, err := ask(t, b.ns, "10.244.7.1:80"); err != nil {
		t.Error("from behind the router:", err)
	}
	if _, err := ask(t, "", "10.244.8.1:80"); err != nil {
		t.Error("to behind the router:", err)
	}
	// This node's end begins anew and waits for the other, which hears of it and speaks.
	a.sync(t)
	a.sync(t, toB)
	toA.Since = time.Now().Add(time.Second)
	b.sync(t, toA)
	began := time.Now()
	for {
		// Until the other has spoken, the kernel refuses to send.
		_, err := askFor(t, "", "10.244.8.1:80", 10*time.Second)
		if err == nil {
			break
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal("to behind the router, after a new begin:", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestTunnelEnds: a shoal-tunnel that was killed is started again.
func TestTunnelEnds(t *testing.T) {
	if kernelHasWireGuard() {
		t.Skip("the kernel has WireGuard, and shoal-tunnel is not started: run it where it has not")
	}
	n := newNetwork(t)
	a, b, _ := encrypted(t, n)
	ended := make(chan struct{}, 1)
	n.cfg.Overlay.Ended = func() { ended <- struct{}{} }
	if err := n.Ensure(); err != nil {
		t.Fatal(err)
	}
	serve(t, b.ns, ":80")
	a.sync(t, b.encrypts())
	b.sync(t, a.encrypts())
	if _, err := ask(t, "", "10.244.8.1:80"); err != nil {
		t.Fatal(err)
	}
	pid := strings.TrimSpace(run(t, "", "pgrep", "-f", "shoal-tunnel .*"+n.cfg.Overlay.Socket))
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("shoal-tunnel has more rights than %s:\n%s", want, status)
		}
	}
	if strings.Contains(string(status), "Uid:\t0\t") {
		t.Errorf("shoal-tunnel runs as root:\n%s", status)
	}
	run(t, "", "kill", "-KILL", pid)
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("nobody was told that it ended")
	}
	a.sync(t, b.encrypts())
	if err := nstest.In("", func() error { _, err := ask(t, "", "10.244.8.1:80"); return err }); err != nil {
		t.Error("after another began:", err)
	}
}

// TestPortTaken: who has the port is told of in words.
func TestPortTaken(t *testing.T) {
	n := newNetwork(t)
	a, b, _ := encrypted(t, n)
	if err := n.Ensure(); err != nil {
		t.Fatal(err)
	}
	taken, err := net.ListenPacket("udp", ":51820")
	if err != nil {
		t.Fatal(err)
	}
	self := Self{Nodes: []netip.Addr{netip.MustParseAddr(a.node)}, Key: a.key}
	if _, err := n.SyncPeers(self, []Peer{b.encrypts()}); err == nil || !strings.Contains(err.Error(), "port 51820") {
		t.Errorf("the port is taken: %v", err)
	}
	taken.Close()
	a.sync(t, b.encrypts())
	b.sync(t, a.encrypts())
	serve(t, b.ns, ":80")
	if _, err := ask(t, "", "10.244.8.1:80"); err != nil {
		t.Error("the port is free again:", err)
	}
}

// FuzzTunnelAnswer: whatever shoal-tunnel says is read or refused, and no error has a key in it.
func FuzzTunnelAnswer(f *testing.F) {
	key := strings.Repeat("ab", 32)
	f.Add("private_key=" + key + "\nlisten_port=51820\npublic_key=" + key + "\nendpoint=192.0.2.1:51820\n" +
		"allowed_ip=10.244.1.0/24\nlast_handshake_time_sec=1\npersistent_keepalive_interval=25\nerrno=0\n\n")
	f.Add("errno=-22\n\n")
	f.Add("private_key=" + key[1:] + "\nerrno=0\n\n")
	f.Add("allowed_ip=x\nerrno=0\n\n")
	f.Fuzz(func(t *testing.T, said string) {
		lines, err := readAnswer(strings.NewReader(said))
		if err != nil {
			return
		}
		if _, err := deviceOf(lines); err != nil && strings.Contains(err.Error(), key[1:]) {
			t.Errorf("the error tells a key: %v", err)
		}
	})
}

// TestRelayWithoutSession: the ranges of a hidden peer that knows no inner tunnel are those of
// the one that hands packets on, until there is a session with the peer itself; it stays a
// peer, spoken to where it is seen.
func TestRelayWithoutSession(t *testing.T) {
	now := time.Now()
	relay, hidden, other := newKey(t), newKey(t), newKey(t)
	at := netip.MustParseAddrPort("203.0.113.7:40000")
	end := End{HasKey: true, Hidden: true}
	ways := []way{
		{peer: Peer{Key: hidden, PodCIDRs: cidr.Parse("10.244.3.0/24"), Self: end, End: end, Relay: relay, At: at}},
		{peer: Peer{Key: other, PodCIDRs: cidr.Parse("10.244.4.0/24"), Self: end, End: end, Relay: newKey(t)}},
		{peer: Peer{Key: relay, PodCIDRs: cidr.Parse("10.244.2.0/24"), Self: end}},
	}
	ranges := func(list []way) (out []string) {
		for _, w := range list {
			out = append(out, w.peer.PodCIDRs.Text())
		}
		return out
	}
	for _, c := range []struct {
		name string
		have []wgtypes.Peer
		want []string // of hidden, other, relay
	}{
		{"never", nil, []string{"", "10.244.4.0/24", "10.244.2.0/24,10.244.3.0/24"}},
		{"too_long_ago", []wgtypes.Peer{{PublicKey: hidden, LastHandshakeTime: now.Add(-settled)}},
			[]string{"", "10.244.4.0/24", "10.244.2.0/24,10.244.3.0/24"}},
		{"now", []wgtypes.Peer{{PublicKey: hidden, LastHandshakeTime: now.Add(-settled + time.Second)}},
			[]string{"10.244.3.0/24", "10.244.4.0/24", "10.244.2.0/24"}},
		{"before_the_clock_was_set_back", []wgtypes.Peer{{PublicKey: hidden, LastHandshakeTime: now.Add(time.Hour)}},
			[]string{"", "10.244.4.0/24", "10.244.2.0/24,10.244.3.0/24"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := &Network{}
			got, inner := n.relay(&wgtypes.Device{Peers: c.have}, ways, 1, now)
			if !slices.Equal(ranges(got), c.want) {
				t.Errorf("%q, want %q", ranges(got), c.want)
			}
			want := map[Key]Path{}
			if c.want[0] == "" {
				want[hidden] = RelayedClear
			}
			if !maps.Equal(n.overlay.relayed, want) || len(inner) > 0 {
				t.Errorf("relayed: %v, within: %v", n.overlay.relayed, inner)
			}
			if got[0].endpoint() != at {
				t.Errorf("it is spoken to at %s, want %s", got[0].endpoint(), at)
			}
		})
	}
	if want := []string{"10.244.3.0/24", "10.244.4.0/24", "10.244.2.0/24"}; !slices.Equal(ranges(ways), want) {
		t.Errorf("what was given has changed: %q", ranges(ways))
	}
}
