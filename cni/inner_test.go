package cni

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/nft"
	"github.com/shoal-project/shoal/cni/nstest"
)

// TestInnerKey: the inner tunnel has a key of its own, and a port.
func TestInnerKey(t *testing.T) {
	a, b := newKey(t), newKey(t)
	if InnerKey(a) == a || InnerKey(a) == InnerKey(b) || InnerKey(Key{}) != (Key{}) {
		t.Error("keys of inner tunnels are not one for each")
	}
	if k := InnerKey(a); k[0]&7 != 0 || k[31]&0xc0 != 0x40 {
		t.Errorf("WireGuard would change the key: %x", k[:])
	}
	// It stays what it is when the agent is upgraded.
	const want = "0806487e9d492e5c510a64f682ad6462ea6cd1059b78128988be8ad6ca52a16c"
	if k := InnerKey(Key{1, 2, 3}); hex.EncodeToString(k[:]) != want {
		t.Errorf("the inner key of before was another: %x", k[:])
	}
	if InnerPort(51820) != 51821 || InnerPort(65535) != 65534 {
		t.Error("the inner tunnel's port")
	}
}

// TestInnerEnds: both nodes choose the same two addresses, whatever families each has.
func TestInnerEnds(t *testing.T) {
	const v4, v6, other4, other6 = "10.244.7.0/24", "fd00:7::/64", "10.244.8.0/24", "fd00:8::/64"
	for _, c := range []struct{ self, peer, want string }{
		{v4, other4, "10.244.8.1 10.244.7.1"},
		{v6 + "," + v4, other4 + "," + other6, "10.244.8.1 10.244.7.1"},
		{v4 + "," + v6, other6, "fd00:8::1 fd00:7::1"},
		{v6, other6, "fd00:8::1 fd00:7::1"},
		{v4, other6, "invalid IP invalid IP"},
	} {
		ends := func(self, peer string) (netip.Addr, netip.Addr) {
			n, err := New(Config{PodCIDRs: cidr.Parse(self), StateDir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			return n.innerEnds(Peer{PodCIDRs: cidr.Parse(peer)})
		}
		to, from := ends(c.self, c.peer)
		if got := to.String() + " " + from.String(); got != c.want {
			t.Errorf("from %s to %s: %s, want %s", c.self, c.peer, got, c.want)
		}
		if back, here := ends(c.peer, c.self); back != from || here != to {
			t.Errorf("from %s to %s: %s and %s, back %s and %s", c.self, c.peer, to, from, back, here)
		}
	}
}

// TestRelayInner: a hidden peer that knows an inner tunnel is reached through it while there
// is no session: the one between carries the addresses of its two ends and no range of pods.
// The inner tunnel stays while there is nobody between.
func TestRelayInner(t *testing.T) {
	now := time.Now()
	relay, hidden, inner := newKey(t), newKey(t), newKey(t)
	end := End{HasKey: true, Hidden: true}
	n, err := New(Config{PodCIDRs: cidr.Parse("10.244.1.0/24"), StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	var own, through string
	plan := func(with Key, have ...wgtypes.Peer) (in []way) {
		t.Helper()
		ways := []way{
			{peer: Peer{
				Key: hidden, PodCIDRs: cidr.Parse("10.244.3.0/24"), Port: 50000, Self: end, End: end,
				Relay: with, Inner: inner,
				At: netip.MustParseAddrPort("203.0.113.7:40000"), Seen: netip.MustParseAddr("203.0.113.7"),
			}},
			{peer: Peer{Key: relay, PodCIDRs: cidr.Parse("10.244.2.0/24"), Self: end}},
		}
		outer, in := n.relay(&wgtypes.Device{Peers: have}, ways, 7, now)
		own, through = outer[0].peer.PodCIDRs.Text(), outer[1].peer.PodCIDRs.Text()
		return in
	}
	if in := plan(Key{}); len(in) != 0 || n.overlay.relayed[hidden] != "" || through != "10.244.2.0/24" {
		t.Errorf("with nobody between: %v by %q, who has %s", in, n.overlay.relayed[hidden], through)
	}
	in := plan(relay)
	if len(in) != 1 || n.overlay.relayed[hidden] != Relayed {
		t.Fatalf("through another: %v by %q", in, n.overlay.relayed[hidden])
	}
	if own != "10.244.3.0/24" || through != "10.244.2.0/24,10.244.3.1/32" {
		t.Errorf("the peer has %s, the one between %s", own, through)
	}
	w := in[0]
	if to := w.endpoint(); to != netip.MustParseAddrPort("10.244.3.1:50001") || w.peer.Key != inner || w.link != 7 ||
		w.peer.PodCIDRs.Text() != "10.244.3.0/24" {
		t.Errorf("within: %+v, spoken to at %s", w, to)
	}
	n.overlay.inner.change(&wgtypes.Device{}, in, now)
	if in := plan(Key{}); len(in) != 1 || n.overlay.relayed[hidden] != "" || through != "10.244.2.0/24" {
		t.Errorf("with nobody between any more: %v by %q, who has %s", in, n.overlay.relayed[hidden], through)
	}
	session := wgtypes.Peer{PublicKey: hidden, LastHandshakeTime: now}
	if in := plan(relay, session); len(in) != 0 || n.overlay.relayed[hidden] != "" || through != "10.244.2.0/24" {
		t.Errorf("with a session: %v by %q, who has %s", in, n.overlay.relayed[hidden], through)
	}
}

// hidden are two nodes that never speak directly, as behind symmetric routers, and two others.
type hidden struct {
	a, b  site
	open  []site
	inner bool // both know inner tunnels
	by    int  // of open, who hands on
	at    bool // they know where the other is
}

func newHidden(t *testing.T, podCIDRs string) *hidden {
	t.Helper()
	ranges := func(i int) string { return strings.ReplaceAll(podCIDRs, "7", fmt.Sprint(i)) }
	n := newNetworkOf(t, filepath.Join(t.TempDir(), "cni"), podCIDRs)
	if err := n.Ensure(); err != nil {
		t.Fatal(err)
	}
	router, program := nstest.New(t), tunnelProgram(t)
	run(t, router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	add := func(i int, n *Network, ns string) site {
		s := site{ns: ns, node: fmt.Sprintf("198.51.%d.1", i), net: n, key: newKey(t)}
		if n == nil {
			s.ns = nstest.New(t)
			s.net = newNetworkIn(t, s, ranges(i))
		}
		s.net.cfg.Overlay.Program, s.net.cfg.Overlay.Socket = program, filepath.Join(t.TempDir(), "tunnel.sock")
		uplink(t, router, s.ns, "up0", s.node+"/24", fmt.Sprintf("198.51.%d.254/24", i), fmt.Sprintf("r%d", i), 1500)
		return s
	}
	h := &hidden{a: add(7, n, ""), b: add(8, nil, "")}
	h.open = []site{add(5, nil, ""), add(6, nil, "")}
	for _, s := range append(h.open, h.b) { // forward, as the agent has it do
		run(t, s.ns, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	}
	return h
}

func newNetworkIn(t *testing.T, s site, podCIDRs string) *Network {
	t.Helper()
	n, err := New(Config{PodCIDRs: cidr.Parse(podCIDRs), ClusterCIDRs: cidr.Parse("10.244.0.0/16,fd00:10:244::/56"),
		StateDir: filepath.Join(t.TempDir(), "cni")})
	if err != nil {
		t.Fatal(err)
	}
	s.do(t, n.Ensure)
	t.Cleanup(func() { s.do(t, n.Cleanup) })
	return n
}

func (h *hidden) from(s, to site, sHidden, toHidden bool) Peer {
	p := to.encrypts()
	p.PodCIDRs = to.net.cfg.PodCIDRs
	p.Self, p.End = End{HasKey: true, Hidden: sHidden}, End{HasKey: true, Hidden: toHidden}
	if sHidden && toHidden {
		p.Relay = h.open[h.by].key.PublicKey()
		if h.inner {
			p.Inner = InnerKey(to.key).PublicKey()
		}
		if h.at {
			p.At = netip.AddrPortFrom(netip.MustParseAddr(to.node), p.Port)
		}
	}
	return p
}

// sync tells all nodes of each other, and returns the path between the two; none while they
// differ.
func (h *hidden) sync(t *testing.T) (path Path) {
	t.Helper()
	tell := func(s site, peers ...Peer) {
		t.Helper()
		own := Self{Nodes: []netip.Addr{netip.MustParseAddr(s.node)}, Key: s.key}
		s.do(t, func() error {
			paths, err := s.net.SyncPeers(own, peers)
			path = paths[peers[0].Name]
			return err
		})
	}
	for _, s := range h.open {
		tell(s, h.from(s, h.a, false, true), h.from(s, h.b, false, true))
	}
	tell(h.a, h.from(h.a, h.b, true, true), h.from(h.a, h.open[0], true, false), h.from(h.a, h.open[1], true, false))
	first := path
	tell(h.b, h.from(h.b, h.a, true, true), h.from(h.b, h.open[0], true, false), h.from(h.b, h.open[1], true, false))
	if path != first {
		return Unreachable
	}
	return path
}

// listen has b take datagrams; take returns the next one.
func (h *hidden) listen(t *testing.T, s site) (at string, take func(time.Duration) string) {
	t.Helper()
	at = net.JoinHostPort(s.net.gateways()[nft.FamilyOf(s.net.cfg.PodCIDRs[0].Addr())].String(), "5555")
	var c net.PacketConn
	s.do(t, func() (err error) { c, err = net.ListenPacket("udp", at); return err })
	t.Cleanup(func() { c.Close() })
	return at, func(patience time.Duration) string {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		buf := make([]byte, 100)
		n, _, _ := c.ReadFrom(buf)
		return string(buf[:n])
	}
}

func say(t *testing.T, ns, from, to, what string) {
	t.Helper()
	if err := nstest.In(ns, func() error {
		var l net.Dialer
		if from != "" {
			l.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))
		}
		c, err := l.Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(what))
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// says sends a text until it comes.
func (h *hidden) says(t *testing.T, ns, to string, take func(time.Duration) string, what string) {
	t.Helper()
	for range 20 {
		say(t, ns, "", to, what)
		for got := " "; got != ""; { // there may be some of before
			if got = take(time.Second); got == what {
				return
			}
		}
	}
	t.Errorf("%q did not come to %s", what, to)
}

// hold keeps a connection to an echo on b from a namespace; goesOn has something go there and
// back by it.
func (h *hidden) hold(t *testing.T, ns, at string) (goesOn func(when string)) {
	t.Helper()
	var l net.Listener
	h.b.do(t, func() (err error) { l, err = net.Listen("tcp", at); return err })
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
	var c net.Conn
	dial := func() (err error) { c, err = net.DialTimeout("tcp", at, 20*time.Second); return err }
	if err := nstest.In(ns, dial); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return func(when string) {
		t.Helper()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		began := time.Now()
		got := make([]byte, len(when))
		if _, err := c.Write([]byte(when)); err != nil {
			t.Errorf("a connection has ended, %s: %v", when, err)
		} else if _, err := io.ReadFull(c, got); err != nil || string(got) != when {
			t.Errorf("a connection does not go on, %s: %q, %v", when, got, err)
		} else if took := time.Since(began); took > time.Second {
			t.Logf("a connection goes on after %s, %s", took, when)
		}
	}
}

// TestInnerTunnel: one who hands packets on between two hidden nodes sees nothing of them,
// and cannot speak in the name of one to the other; another takes over within the same
// session, and the two speak directly once they can. A node that knows no inner tunnels is
// reached as it ever was, which shows that the test can fail.
func TestInnerTunnel(t *testing.T) { // NET-2
	for name, ranges := range map[string]string{
		"ipv4": "10.244.7.0/24", "ipv6": "fd00:10:244:7::/64", "both": "fd00:10:244:7::/64,10.244.7.0/24",
	} {
		t.Run(name, func(t *testing.T) { testInnerTunnel(t, ranges) })
	}
}

func testInnerTunnel(t *testing.T, ranges string) {
	h := newHidden(t, ranges)
	early, _ := attach(t, h.a.net, "early")
	toA, atA := h.listen(t, h.a)
	toB, atB := h.listen(t, h.b)
	outer := h.a.net.wireguardName()
	bothWays := func(text string) {
		t.Helper()
		h.says(t, early.NetNS, toB, atB, text)
		h.says(t, "", toB, atB, text)
		h.says(t, h.b.ns, toA, atA, text)
	}
	if path := h.sync(t); path != RelayedClear {
		t.Errorf("without inner tunnels the path is %q", path)
	}
	bothWays("before")
	ofPod := h.hold(t, early.NetNS, net.JoinHostPort(hostOf(toB), "91"))
	ofNode := h.hold(t, "", net.JoinHostPort(hostOf(toB), "92"))
	goOn := func(when string) { t.Helper(); ofPod(when); ofNode(when) }
	goOn("in the clear")
	first := nstest.TapInto(t, h.open[0].ns, outer)
	bothWays("in the clear")
	if _, found := first.Saw("in the clear"); !found {
		t.Error("the one between does not see what it hands on in the clear: the test is blind")
	}
	// It can speak for b.
	forge := func() (came string) {
		t.Helper()
		for atA(100*time.Millisecond) != "" { // of before
		}
		forged, _, _ := net.SplitHostPort(toB)
		run(t, h.open[0].ns, "ip", "addr", "add", forged, "dev", "lo", "nodad")
		defer run(t, h.open[0].ns, "ip", "addr", "del", forged, "dev", "lo")
		for range 5 {
			say(t, h.open[0].ns, forged, toA, "forged")
		}
		return atA(2 * time.Second)
	}
	if got := forge(); got != "forged" {
		t.Errorf("%q came of what was forged: the test is blind", got)
	}

	h.inner = true
	if path := h.sync(t); path != Relayed {
		t.Errorf("with inner tunnels the path is %q", path)
	}
	goOn("within inner tunnels")
	bothWays("not to be read")
	if n, found := first.Saw("not to be read"); found || n == 0 {
		t.Errorf("the one between saw it: %v, in %d bytes", found, n)
	}
	if got := forge(); got != "" {
		t.Errorf("%q came from the one between in the other's name", got)
	}
	late, _ := attach(t, h.a.net, "late")
	want := " mtu 1360 "
	if h.a.net.stacks[0].Family == nft.V6 && len(h.a.net.stacks) == 1 {
		want = " mtu 1340 "
	}
	if out := run(t, late.NetNS, "ip", "link", "show", "eth0"); !strings.Contains(out, want) {
		t.Errorf("a pod that begins now has another MTU than %s: %s", want, out)
	}
	for _, pod := range []string{early.NetNS, late.NetNS} {
		if err := sendMuch(t, pod, h.b.ns, net.JoinHostPort(hostOf(toB), "81")); err != nil {
			t.Error("many bytes:", err)
		}
	}

	// Another one takes over.
	session := h.session(t)
	h.by = 1
	h.sync(t)
	second := nstest.TapInto(t, h.open[1].ns, outer)
	before, _ := first.Saw("")
	goOn("through another")
	bothWays("to another")
	if after, _ := first.Saw(""); after-before > 1000 { // keepalives
		t.Errorf("%d bytes passed the one before", after-before)
	}
	if n, found := second.Saw("to another"); found || n == 0 {
		t.Errorf("the other one saw it: %v, in %d bytes", found, n)
	}
	if now := h.session(t); now != session {
		t.Errorf("the session of %s is one of %s", session, now)
	}

	// One of them goes back to an earlier version, and on again.
	h.inner = false
	if path := h.sync(t); path != RelayedClear {
		t.Errorf("without inner tunnels the path is %q", path)
	}
	goOn("in the clear again")
	h.inner = true
	h.sync(t)
	goOn("within inner tunnels again")

	// They come to speak directly.
	h.at = true
	deadline := time.Now().Add(20 * time.Second)
	for ; h.sync(t) != WireGuard; time.Sleep(500 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("they do not come to a session of their own")
		}
	}
	goOn("directly")
	before, _ = second.Saw("")
	bothWays("directly")
	if after, _ := second.Saw(""); after-before > 1000 {
		t.Errorf("%d bytes passed the one that is not between any more", after-before)
	}
	for _, s := range []site{h.a, h.b} {
		h.nothingLeft(t, s)
	}
	h.at = false
}

func hostOf(at string) string { host, _, _ := net.SplitHostPort(at); return host }

// session is when the two had a handshake of their inner tunnel.
func (h *hidden) session(t *testing.T) time.Time {
	t.Helper()
	_, device, err := h.a.net.wireguardDevice(&h.a.net.overlay.inner)
	if err != nil {
		t.Fatal(err)
	}
	have, err := device.read()
	if err != nil || len(have.Peers) != 1 {
		t.Fatalf("%v, %+v", err, have)
	}
	return have.Peers[0].LastHandshakeTime
}

// nothingLeft looks for what is of the inner tunnel.
func (h *hidden) nothingLeft(t *testing.T, s site) {
	t.Helper()
	for _, command := range []string{"ip link", "ip rule", "ip -6 rule", "ip route show table all",
		"ip -6 route show table all", "nft list tables"} {
		out := run(t, s.ns, "sh", "-c", command)
		if strings.Contains(out, "-wg-in") || strings.Contains(out, "8384") || strings.Contains(out, "-relay") {
			t.Errorf("%s tells what is left: %s", command, out)
		}
	}
	if left, _ := filepath.Glob(s.net.cfg.Overlay.Socket + ".inner*"); len(left) > 0 {
		t.Errorf("files left: %v", left)
	}
}

// TestInnerNowhere: what the inner tunnel sends while there is no outer one goes nowhere, and
// not into itself. With the outer one all is as before.
func TestInnerNowhere(t *testing.T) {
	h := newHidden(t, "10.244.7.0/24")
	h.inner = true
	h.sync(t)
	toB, atB := h.listen(t, h.b)
	h.says(t, "", toB, atB, "there")
	run(t, "", "ip", "link", "del", h.a.net.wireguardName())
	sent := func() uint64 {
		t.Helper()
		l, err := netlink.LinkByName(h.a.net.overlay.inner.name)
		if err != nil {
			t.Fatal(err)
		}
		return l.Attrs().Statistics.TxPackets
	}
	before := sent()
	for range 20 {
		say(t, "", "", toB, "nowhere")
	}
	time.Sleep(time.Second)
	if n := sent() - before; n > 40 {
		t.Errorf("20 packets became %d", n)
	}
	h.sync(t)
	h.says(t, "", toB, atB, "there again")
}

// TestInnerPortTaken: while there can be no inner tunnel, nobody hands anything on in the
// clear instead, and the error says why.
func TestInnerPortTaken(t *testing.T) {
	h := newHidden(t, "10.244.7.0/24")
	h.sync(t)
	toB, atB := h.listen(t, h.b)
	h.says(t, "", toB, atB, "in the clear")
	between := nstest.TapInto(t, h.open[0].ns, h.a.net.wireguardName())
	taken, err := net.ListenPacket("udp", ":51821")
	if err != nil {
		t.Fatal(err)
	}
	h.inner = true
	self := Self{Nodes: []netip.Addr{netip.MustParseAddr(h.a.node)}, Key: h.a.key}
	peers := []Peer{h.from(h.a, h.b, true, true), h.from(h.a, h.open[0], true, false)}
	paths, err := h.a.net.SyncPeers(self, peers)
	if err == nil || !strings.Contains(err.Error(), "port 51821") || paths[h.b.node] != WireGuard {
		t.Errorf("with the port taken: %v, path %q", err, paths[h.b.node])
	}
	c, err := net.Dial("udp", toB)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 5 {
		_, _ = c.Write([]byte("not to be read")) // it may be told that there is no way
	}
	if _, found := between.Saw("not to be read"); found {
		t.Error("the one between saw it")
	}
	taken.Close()
	h.sync(t)
	h.says(t, "", toB, atB, "within")
	if _, found := between.Saw("within"); found {
		t.Error("the one between saw it, with the port free")
	}
}

// TestInnerStaysWithFirst: a node that shows the key of another's inner tunnel takes nothing
// of that.
func TestInnerStaysWithFirst(t *testing.T) {
	key := newKey(t)
	var in tunnel
	first, liar := way{peer: Peer{Name: "first", Key: key}}, way{peer: Peer{Name: "liar", Key: key}}
	in.byKey([]way{first})
	got := in.byKey([]way{liar, first})
	if !slices.EqualFunc(got, []way{first}, func(a, b way) bool { return a.peer.Name == b.peer.Name }) {
		t.Errorf("the key is that of %+v", got)
	}
}
