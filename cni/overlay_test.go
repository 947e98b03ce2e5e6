package cni

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/nft"
	"github.com/shoal-project/shoal/cni/nstest"
)

func TestChoose(t *testing.T) { // NET-2
	plain, key := End{}, End{HasKey: true}
	encrypts := End{HasKey: true, Encrypts: true}
	hidden, hiddenKey := End{Hidden: true}, End{Hidden: true, HasKey: true}
	for _, c := range []struct {
		self, peer End
		shared     bool
		want       Path
	}{
		{plain, plain, true, Direct},
		{plain, plain, false, VXLAN},
		{key, key, true, Direct},
		{key, key, false, VXLAN},
		{encrypts, encrypts, true, WireGuard},
		{encrypts, encrypts, false, WireGuard},
		{encrypts, plain, true, Direct}, // while encryption is rolled out
		{encrypts, key, false, VXLAN},
		{encrypts, End{Encrypts: true}, false, VXLAN}, // its key is not heard yet
		{hidden, plain, true, Direct},                 // whatever gossip sees, they are neighbours
		{hiddenKey, key, false, WireGuard},
		{key, hiddenKey, false, WireGuard},
		{hiddenKey, hiddenKey, false, WireGuard},
		{hidden, key, false, Unreachable},
		{plain, hiddenKey, false, Unreachable},
		{encrypts, hiddenKey, false, WireGuard},
	} {
		if got := Choose(c.self, c.peer, c.shared); got != c.want {
			t.Errorf("%+v to %+v, shared network %v: %q, want %q", c.self, c.peer, c.shared, got, c.want)
		}
		if back := Choose(c.peer, c.self, c.shared); back != c.want {
			t.Errorf("%+v to %+v, shared network %v: the other end chose %q", c.self, c.peer, c.shared, back)
		}
	}
}

func TestOverhead(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, c := range []struct {
		path  Path
		outer netip.Addr
		want  int
	}{{VXLAN, v4, 50}, {VXLAN, v6, 70}, {WireGuard, v4, 80}, {WireGuard, v6, 80}, {Relayed, v4, 60}, {Relayed, v6, 80}} {
		if got := overhead(c.path, c.outer); got != c.want {
			t.Errorf("%s by %s: %d", c.path, c.outer, got)
		}
	}
}

func TestVTEP(t *testing.T) {
	seen := map[string]string{}
	for _, s := range []string{"10.244.1.1", "10.244.2.1", "10.245.1.1", "fd00:1::1", "fd00:2::1"} {
		mac := vtepOf(netip.MustParseAddr(s))
		if len(mac) != 6 || mac[0]&1 != 0 || mac[0]&2 == 0 {
			t.Errorf("%s: %s is no hardware address of one's own making", s, mac)
		}
		if seen[mac.String()] != "" {
			t.Errorf("%s and %s have the address %s", s, seen[mac.String()], mac)
		}
		seen[mac.String()] = s
	}
}

// TestOuterFamily: both ends of a tunnel choose addresses of the same family.
func TestOuterFamily(t *testing.T) {
	addrs := func(list ...string) (out []netip.Addr) {
		for _, a := range list {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	for _, c := range []struct {
		self, peer []netip.Addr
		want       string
	}{
		{addrs("192.0.2.1"), addrs("192.0.2.2"), "192.0.2.2"},
		{addrs("192.0.2.1", "2001:db8::1"), addrs("2001:db8::2", "192.0.2.2"), "192.0.2.2"},
		{addrs("2001:db8::1", "192.0.2.1"), addrs("192.0.2.2", "2001:db8::2"), "192.0.2.2"},
		{addrs("2001:db8::1"), addrs("192.0.2.2", "2001:db8::2"), "2001:db8::2"},
		{addrs("192.0.2.1", "2001:db8::1"), addrs("2001:db8::2"), "2001:db8::2"},
	} {
		n := &Network{overlay: overlay{self: Self{Nodes: c.self}}}
		if got := n.outerOf(Peer{Nodes: c.peer}); got.String() != c.want {
			t.Errorf("from %v to %v: %s, want %s", c.self, c.peer, got, c.want)
		}
	}
}

// site is a node with an uplink to a router: this process's namespace, or another.
type site struct {
	ns, node string
	pods     netip.Prefix
	net      *Network
	key      Key // private
}

// routed joins this namespace and two more by a router which knows the nodes' networks
// alone.
func routed(t testing.TB, here *Network, mtu int) (a, b site, router string) {
	t.Helper()
	router = nstest.New(t)
	a = site{node: "192.0.2.1", pods: here.stacks[0].pool.prefix, net: here}
	b = site{ns: nstest.New(t), node: "198.51.100.1", pods: netip.MustParsePrefix("10.244.8.0/24")}
	uplink(t, router, a.ns, "up0", "192.0.2.1/24", "192.0.2.254/24", "r0", mtu)
	uplink(t, router, b.ns, "up0", "198.51.100.1/24", "198.51.100.254/24", "r1", mtu)
	run(t, router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	cfg := here.cfg
	cfg.PodCIDRs, cfg.StateDir = cidr.Prefixes{b.pods}, filepath.Join(t.TempDir(), "b")
	if len(here.stacks) > 1 {
		cfg.PodCIDRs = append(cfg.PodCIDRs, netip.MustParsePrefix("fd00:10:244:8::/64"))
	}
	var err error
	if b.net, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	b.do(t, b.net.Ensure)
	t.Cleanup(func() { b.do(t, b.net.Cleanup) })
	return a, b, router
}

func (s site) do(t testing.TB, f func() error) {
	t.Helper()
	if err := nstest.In(s.ns, f); err != nil {
		t.Fatal(err)
	}
}

// peer is the site as the others know it.
func (s site) peer() Peer {
	at := netip.MustParseAddr(s.node)
	return Peer{Name: s.node, PodCIDRs: cidr.Prefixes{s.pods}, Via: at, Nodes: []netip.Addr{at}}
}

func (s site) sync(t testing.TB, peers ...Peer) {
	t.Helper()
	own := Self{Nodes: []netip.Addr{netip.MustParseAddr(s.node)}, Key: s.key}
	s.do(t, func() error { _, err := s.net.SyncPeers(own, peers); return err })
}

// run runs a command in a namespace.
func run(t testing.TB, ns string, name string, args ...string) string {
	t.Helper()
	if ns != "" {
		name, args = "nsenter", append([]string{"--net=" + ns, "--", name}, args...)
	}
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

func uplink(t testing.TB, router, ns, name, addr, via, port string, mtu int) {
	t.Helper()
	to, err := netns.GetFromPath(router)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if err := nstest.In(ns, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = name, mtu
		veth := netlink.NewVeth(attrs)
		veth.PeerName, veth.PeerNamespace, veth.PeerMTU = port, netlink.NsFd(int(to)), uint32(mtu)
		return netlink.LinkAdd(veth)
	}); err != nil {
		t.Fatal(err)
	}
	if ns == "" {
		t.Cleanup(func() { _ = deleteLink(name) })
	}
	gw, _, _ := strings.Cut(via, "/")
	run(t, ns, "ip", "addr", "add", addr, "dev", name)
	run(t, ns, "ip", "link", "set", name, "up")
	run(t, router, "ip", "addr", "add", via, "dev", port)
	run(t, router, "ip", "link", "set", port, "up")
	run(t, ns, "ip", "route", "replace", "default", "via", gw)
}

// TestVXLAN: pods reach those of a node behind a router, with their own addresses,
// whatever size their packets have. A node that gets another address, that leaves and
// comes is followed, and nothing is left in the end.
func TestVXLAN(t *testing.T) { // NET-2
	n := newNetwork(t)
	a, b, _ := routed(t, n, 1400)
	early, re := attach(t, n, "early") // before anybody knows of a tunnel
	serve(t, b.ns, ":80")
	a.sync(t, b.peer())
	b.sync(t, a.peer())
	const there = "10.244.8.1:80"
	if got, err := ask(t, early.NetNS, there); err != nil || got != re.Addrs[0].String() {
		t.Errorf("a pod to another node's: %q, %v; want its own address %s", got, err, re.Addrs[0])
	}
	if got, err := ask(t, "", there); err != nil || got != "10.244.7.1" {
		t.Errorf("the node to another node's pod: %q, %v", got, err)
	}
	late, _ := attach(t, n, "late")
	for pod, want := range map[string]string{early.NetNS: "1400", late.NetNS: "1350"} {
		if out := run(t, pod, "ip", "link", "show", "eth0"); !strings.Contains(out, " mtu "+want+" ") {
			t.Errorf("want MTU %s: %s", want, out)
		}
	}
	for _, pod := range []string{early.NetNS, late.NetNS} {
		if err := sendMuch(t, pod, b.ns, "10.244.8.1:81"); err != nil {
			t.Error("many bytes:", err)
		}
	}

	// Again changes nothing: not by one entry that is deleted and made.
	before := run(t, "", "ip", "-d", "link", "show", "shoal0-vx")
	a.sync(t, b.peer())
	if after := run(t, "", "ip", "-d", "link", "show", "shoal0-vx"); after != before {
		t.Errorf("the tunnel was made anew:\n%s%s", before, after)
	}

	run(t, b.ns, "ip", "addr", "add", "198.51.100.7/24", "dev", "up0")
	run(t, b.ns, "ip", "addr", "del", "198.51.100.1/24", "dev", "up0")
	run(t, b.ns, "ip", "addr", "add", "198.51.100.7/24", "dev", "up0", "nodad")
	run(t, b.ns, "ip", "route", "replace", "default", "via", "198.51.100.254")
	b.node = "198.51.100.7"
	a.sync(t, b.peer())
	b.sync(t, a.peer())
	if _, err := ask(t, early.NetNS, there); err != nil {
		t.Error("after the node's address changed:", err)
	}
	if out := run(t, "", "bridge", "fdb", "show", "dev", "shoal0-vx"); strings.Contains(out, "198.51.100.1 ") {
		t.Errorf("the old address is left: %s", out)
	}

	// A second peer goes, the first stays.
	other := site{node: "203.0.113.1", pods: netip.MustParsePrefix("10.244.9.0/24")}
	a.sync(t, b.peer(), other.peer())
	a.sync(t, b.peer())
	for _, list := range []string{run(t, "", "bridge", "fdb", "show", "dev", "shoal0-vx"), run(t, "", "ip", "neigh"),
		run(t, "", "ip", "route"), run(t, "", "nft", "list", "ruleset")} {
		if strings.Contains(list, "203.0.113.1") || strings.Contains(list, "10.244.9.") {
			t.Errorf("left of a node that is gone: %s", list)
		}
	}
	if _, err := ask(t, early.NetNS, there); err != nil {
		t.Error("after another node went:", err)
	}
	a.sync(t)
	b.sync(t)
	for _, s := range []site{a, b} {
		if out := run(t, s.ns, "ip", "link"); strings.Contains(out, "-vx") {
			t.Errorf("interfaces left: %s", out)
		}
		if out := run(t, s.ns, "nft", "list", "tables"); strings.Contains(out, "-vxlan") {
			t.Errorf("tables left: %s", out)
		}
		if out := run(t, s.ns, "ip", "route", "show", "proto", "84"); out != "" {
			t.Errorf("routes left: %s", out)
		}
	}
}

// sendMuch sends more than a window of bytes by TCP.
func sendMuch(t *testing.T, from, to, addr string) error {
	t.Helper()
	var l net.Listener
	if err := nstest.In(to, func() (err error) { l, err = net.Listen("tcp", addr); return err }); err != nil {
		return err
	}
	defer l.Close()
	got := make(chan error, 1)
	const size = 4 << 20
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- err
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		n, buf := 0, make([]byte, 1<<16)
		for {
			m, err := c.Read(buf)
			if n += m; err != nil {
				break
			}
		}
		if n != size {
			got <- fmt.Errorf("%d of %d bytes came", n, size)
			return
		}
		got <- nil
	}()
	return errors.Join(nstest.In(from, func() error {
		c, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		_, err = c.Write(make([]byte, size))
		return err
	}), func() error {
		select {
		case err := <-got:
			return err
		case <-time.After(20 * time.Second):
			return errors.New("not all came in time")
		}
	}())
}

// TestTunnelFamilies: what is in a tunnel may be of another family than the nodes'
// addresses, by VXLAN and by WireGuard.
func TestTunnelFamilies(t *testing.T) { // NET-2
	n := newNetworkOf(t, filepath.Join(t.TempDir(), "cni"), bothRanges)
	a, b, router := encrypted(t, n)
	if err := n.Ensure(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct{ ns, port, node, router, gw string }{
		{a.ns, "r0", "2001:db8:1::1/64", "2001:db8:1::fe/64", "2001:db8:1::fe"},
		{b.ns, "r1", "2001:db8:2::1/64", "2001:db8:2::fe/64", "2001:db8:2::fe"},
	} {
		run(t, s.ns, "ip", "addr", "add", s.node, "dev", "up0", "nodad")
		run(t, router, "ip", "addr", "add", s.router, "dev", s.port, "nodad")
		run(t, s.ns, "ip", "-6", "route", "replace", "default", "via", s.gw)
	}
	run(t, router, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
	inner := map[string]string{"10.244.8.1": "10.244.7.1"}
	if here, served := n.gateways()[nft.V6]; served {
		inner[b.net.gateways()[nft.V6].String()] = here.String()
	}
	b4 := b.node
	for _, nodes := range [][2]string{{"192.0.2.1", b4}, {"2001:db8:1::1", "2001:db8:2::1"}} {
		a.node, b.node = nodes[0], nodes[1]
		for _, path := range []Path{VXLAN, WireGuard} {
			toB, toA := b.peer(), a.peer()
			if path == WireGuard {
				toB, toA = b.encrypts(), a.encrypts()
			}
			toB.PodCIDRs, toA.PodCIDRs = b.net.cfg.PodCIDRs, n.cfg.PodCIDRs
			a.sync(t, toB)
			b.sync(t, toA)
			for there := range inner {
				if err := sendMuch(t, "", b.ns, net.JoinHostPort(there, "81")); err != nil {
					t.Errorf("%s to %s between %s: %v", path, there, a.node, err)
				}
			}
		}
	}
	a.sync(t)
	b.sync(t)
}

// TestVXLANToDirect: a path that changes leaves nothing of the one before.
func TestVXLANToDirect(t *testing.T) {
	n := newNetwork(t)
	a, b, router := routed(t, n, 1500)
	if err := n.Ensure(); err != nil {
		t.Fatal(err)
	}
	a.sync(t, b.peer())
	if out := run(t, "", "ip", "route", "show", "10.244.8.0/24"); !strings.Contains(out, "dev shoal0-vx") {
		t.Fatalf("route: %s", out)
	}
	// The node moves to this one's network: the router becomes a switch, in effect.
	near := b
	near.node = "192.0.2.9"
	run(t, router, "ip", "addr", "add", "192.0.2.9/24", "dev", "r0")
	a.sync(t, near.peer())
	if out := run(t, "", "ip", "route", "show", "10.244.8.0/24"); !strings.Contains(out, "via 192.0.2.9") ||
		strings.Count(out, "\n") != 1 {
		t.Errorf("route: %s", out)
	}
	a.sync(t, b.peer())
	if out := run(t, "", "ip", "route", "show", "10.244.8.0/24"); !strings.Contains(out, "dev shoal0-vx") ||
		strings.Count(out, "\n") != 1 {
		t.Errorf("route: %s", out)
	}
}

// TestVXLANStrangers: what a pod, or a machine that is no node, puts into VXLAN reaches
// nobody. What a node puts into it does, so that the test can fail.
func TestVXLANStrangers(t *testing.T) {
	n := newNetwork(t)
	a, b, router := routed(t, n, 1500)
	pod, _ := attach(t, n, "a")
	a.sync(t, b.peer())
	b.sync(t, a.peer())
	var got net.PacketConn
	b.do(t, func() (err error) { got, err = net.ListenPacket("udp4", ":5555"); return err })
	defer got.Close()
	send := func(ns, what string) {
		t.Helper()
		if err := nstest.In(ns, func() error {
			c, err := net.Dial("udp4", b.node+":4789")
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write(frameInVXLAN(vtepOf(gatewayOf(b.pods)), "10.244.7.77", "10.244.8.1", 5555, what))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	send(pod.NetNS, "pod")
	send(router, "stranger")
	send("", "node")
	_ = got.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 100)
	size, _, err := got.ReadFrom(buf)
	if err != nil || string(buf[:size]) != "node" {
		t.Errorf("%q came, %v; want the node's alone", buf[:size], err)
	}
}

// frameInVXLAN is a packet of UDP as RFC 7348 puts it into another.
func frameInVXLAN(to net.HardwareAddr, from, dst string, port uint16, text string) []byte {
	udp := binary.BigEndian.AppendUint16(nil, 4444)
	udp = binary.BigEndian.AppendUint16(udp, port)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(text)))
	udp = append(append(udp, 0, 0), text...) // no checksum
	ip := []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 1, 0, 0, 64, 17, 0, 0}
	ip = append(ip, netip.MustParseAddr(from).AsSlice()...)
	ip = append(ip, netip.MustParseAddr(dst).AsSlice()...)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	frame := append([]byte{8, 0, 0, 0, 0, 0, DefaultVXLANID, 0}, to...)
	frame = append(frame, 0x0e, 0x58, 10, 244, 7, 1, 0x08, 0x00)
	return append(append(frame, ip...), udp...)
}
