package cni

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/cni/podnet"
)

// frame is an Ethernet frame as a pod with NET_RAW may make it.
func frame(to, from net.HardwareAddr, protocol uint16, payload []byte) []byte {
	b := append(append([]byte{}, to...), from...)
	return append(binary.BigEndian.AppendUint16(b, protocol), payload...)
}

// datagram is an IPv4 packet with a UDP datagram, without the latter's checksum,
// which is optional (RFC 768).
func datagram(from, to netip.AddrPort, text string) []byte {
	b := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	b = append(append(b, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(text)))
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(text)))
	return append(append(b, 0, 0), text...)
}

// arpReply says that addr is at mac (RFC 826).
func arpReply(addr netip.Addr, mac net.HardwareAddr, to netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 2}
	b = append(append(b, mac...), addr.AsSlice()...)
	return append(append(b, macOf(to)...), to.AsSlice()...)
}

// routerAdvertisement is one (RFC 4861, section 4.2) from a link-local address to all
// nodes, as far as a receiver looks before the checksum.
func routerAdvertisement() []byte {
	b := []byte{0x60, 0, 0, 0, 0, 16, unix.IPPROTO_ICMPV6, 255}
	b = append(b, netip.MustParseAddr("fe80::666").AsSlice()...)
	b = append(b, netip.MustParseAddr("ff02::1").AsSlice()...)
	return append(b, 134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0)
}

// wire is a packet socket on one interface of one namespace.
type wire struct {
	fd    int
	index int
}

func openWire(t *testing.T, ns, name string) wire {
	t.Helper()
	w := wire{}
	all := int(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)))
	err := nstest.In(ns, func() error {
		l, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, all); err != nil {
			return err
		}
		w.index = l.Index
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: l.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

func (w wire) send(t *testing.T, b []byte) {
	t.Helper()
	if err := unix.Sendto(w.fd, b, 0, &unix.SockaddrLinklayer{Ifindex: w.index}); err != nil {
		t.Fatal(err)
	}
}

// until returns the frames that come before the one with the mark in it.
func (w wire) until(t *testing.T, mark string) [][]byte {
	t.Helper()
	if err := unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}); err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for {
		b := make([]byte, 2048)
		n, err := unix.Read(w.fd, b)
		if err != nil {
			t.Fatalf("waiting for %q: %v, after %d frames", mark, err, len(all))
		}
		if bytes.Contains(b[:n], []byte(mark)) {
			return all
		}
		all = append(all, b[:n])
	}
}

// attacker is a pod that may send any frame, with its victims: another pod and
// the node.
type attacker struct {
	t            *testing.T
	n            *Network
	addr, victim netip.Addr
	gateway      netip.Addr
	out          wire           // the attacker's interface
	victimNS     string         // the other pod's
	in, bridge   wire           // the other pod's interface, and the node's
	node         net.PacketConn // what the node listens on
}

const victimPort = 9999

func newAttacker(t *testing.T, n *Network) *attacker {
	a, ra := attach(t, n, "attacker")
	b, rb := attach(t, n, "victim")
	x := &attacker{t: t, n: n, addr: ra.Addrs[0], victim: rb.Addrs[0], gateway: ra.Gateways[0], victimNS: b.NetNS}
	x.out, x.in, x.bridge = openWire(t, a.NetNS, "eth0"), openWire(t, b.NetNS, "eth0"), openWire(t, "", DefaultBridge)
	var err error
	if x.node, err = net.ListenPacket("udp4", ":9999"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.node.Close() })
	serve(t, b.NetNS, ":80")
	// What the attacker sends is what the test sends: its kernel's own search for
	// IPv6 neighbours would pass while a test has taken the bridge's rules away.
	if err := nstest.In(a.NetNS, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
	}); err != nil {
		t.Fatal(err)
	}
	return x
}

// udp is a datagram for the victims' port.
func (x *attacker) udp(from, to netip.Addr, text string) []byte {
	return datagram(netip.AddrPortFrom(from, 4444), netip.AddrPortFrom(to, victimPort), text)
}

// own sends a frame as the pod is supposed to.
func (x *attacker) own(to netip.Addr, text string) {
	x.t.Helper()
	x.out.send(x.t, frame(macOf(x.gateway), macOf(x.addr), unix.ETH_P_IP, x.udp(x.addr, to, text)))
}

// strike sends every forgery; each has the word in it, or is of a protocol that
// no victim may see.
func (x *attacker) strike() {
	x.t.Helper()
	me, gw, victim := macOf(x.addr), macOf(x.gateway), macOf(x.victim)
	foreign := netip.MustParseAddr("198.51.100.66")
	all := net.HardwareAddr{255, 255, 255, 255, 255, 255}
	tagged := append([]byte{0, 0, 8, 0}, x.udp(foreign, x.victim, "forged")...)
	for _, f := range [][]byte{
		// Another's address, in the world, of a pod, and of the node.
		frame(gw, me, unix.ETH_P_IP, x.udp(foreign, x.victim, "forged")),
		frame(gw, me, unix.ETH_P_IP, x.udp(foreign, x.gateway, "forged")),
		frame(gw, me, unix.ETH_P_IP, x.udp(x.victim, x.gateway, "forged")),
		frame(gw, me, unix.ETH_P_IP, x.udp(x.gateway, x.victim, "forged")),
		// Another's hardware address.
		frame(gw, victim, unix.ETH_P_IP, x.udp(x.addr, x.gateway, "forged")),
		frame(gw, victim, unix.ETH_P_IP, x.udp(x.victim, x.gateway, "forged")),
		// Around the node, to one and to all.
		frame(victim, me, unix.ETH_P_IP, x.udp(x.addr, x.victim, "forged")),
		frame(all, me, unix.ETH_P_IP, x.udp(x.addr, x.victim, "forged")),
		frame(net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}, me, unix.ETH_P_IP,
			x.udp(x.addr, netip.MustParseAddr("224.0.0.1"), "forged")),
		// Past the bridge's rules, by the addresses that bridges keep for themselves.
		frame(net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0x0e}, victim, unix.ETH_P_LLDP, []byte("forged")),
		frame(net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0x0e}, me, unix.ETH_P_IP, x.udp(foreign, x.gateway, "forged")),
		frame(net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0x02}, victim, unix.ETH_P_SLOW, []byte("forged")),
		frame(net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0x00}, victim, unix.ETH_P_802_2, []byte("forged")),
		// In a VLAN, also that of priorities alone.
		frame(gw, me, unix.ETH_P_8021Q, tagged),
		frame(victim, me, unix.ETH_P_8021Q, append([]byte{0, 7, 8, 0}, tagged[4:]...)),
		// Answers that nobody asked for.
		frame(victim, me, unix.ETH_P_ARP, arpReply(x.gateway, me, x.victim)),
		frame(all, me, unix.ETH_P_ARP, arpReply(x.gateway, me, x.victim)),
		frame(gw, me, unix.ETH_P_ARP, arpReply(x.victim, me, x.gateway)),
		frame(gw, me, unix.ETH_P_ARP, arpReply(x.victim, victim, x.gateway)),
		frame(gw, me, unix.ETH_P_ARP, arpReply(x.addr, victim, x.gateway)),
		// IPv6, which the pod network has not.
		frame(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, me, unix.ETH_P_IPV6, routerAdvertisement()),
	} {
		x.out.send(x.t, f)
	}
}

// judge tells what of the forgeries arrived.
func (x *attacker) judge() {
	x.t.Helper()
	x.own(x.victim, "honest")
	x.own(x.gateway, "honest")
	me, victim := macOf(x.addr), macOf(x.victim)
	for _, f := range x.in.until(x.t, "honest") {
		if f[13] == 0xdd && f[12] == 0x86 && !bytes.Equal(f[6:12], me) {
			continue // the pod's own kernel looks for IPv6
		}
		if bytes.Contains(f, []byte("forged")) || bytes.Equal(f[6:12], me) {
			x.t.Errorf("the other pod received % x", f)
		}
	}
	// The pods' kernels have drawn up addresses of their own by ARP, so that
	// the bridge sees requests; nothing forged is among them.
	for _, f := range x.bridge.until(x.t, "honest") {
		arp := f[12] == 8 && f[13] == 6
		if bytes.Contains(f, []byte("forged")) || arp && bytes.Equal(f[22:28], me) &&
			!bytes.Equal(f[28:32], x.addr.AsSlice()) {
			x.t.Errorf("the node received % x", f)
		}
		if arp && bytes.Equal(f[22:28], victim) && !bytes.Equal(f[28:32], x.victim.AsSlice()) {
			x.t.Errorf("the node received % x", f)
		}
	}
	_ = x.node.SetReadDeadline(time.Now().Add(time.Minute))
	b := make([]byte, 100)
	if n, from, err := x.node.ReadFrom(b); err != nil || string(b[:n]) != "honest" {
		x.t.Errorf("a service of the node received %q from %v, %v", b[:n], from, err)
	}
	if got, err := ask(x.t, "", netip.AddrPortFrom(x.victim, 80).String()); err != nil || got != x.gateway.String() {
		x.t.Errorf("the node does not reach the other pod any more: %q, %v", got, err)
	}
	if l, err := netlink.LinkByName(DefaultBridge); err != nil {
		x.t.Error(err)
	} else if addrs, _ := netlink.AddrList(l, netlink.FAMILY_V6); len(addrs) > 0 {
		x.t.Errorf("the bridge has IPv6 addresses: %v", addrs)
	}
}

func TestPodSendsAsItselfOnly(t *testing.T) {
	x := newAttacker(t, newNetwork(t))
	x.strike()
	x.judge()
}

// A new version of the agent finds ports that know nothing of its rules.
func TestPortsOfAnEarlierVersion(t *testing.T) {
	n := newNetwork(t)
	x := newAttacker(t, n)
	for _, command := range []string{
		"nft delete table bridge " + DefaultTable,
		"ip link set dev " + hostIf(podnet.Sandbox{ID: "attacker", IfName: "eth0"}) + " group default",
		"ip link set dev " + hostIf(podnet.Sandbox{ID: "victim", IfName: "eth0"}) + " group default",
	} {
		if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %s", command, out)
		}
	}
	if n.damage() == "" {
		t.Error("the loss of the bridge's table was not noticed")
	}
	next, err := New(n.cfg)
	if err == nil {
		err = next.Ensure()
	}
	if err != nil {
		t.Fatal(err)
	}
	x.strike()
	x.judge()
}

func TestRulesEndWithThePod(t *testing.T) {
	n := newNetwork(t)
	a, _ := attach(t, n, "a")
	listed := func() string {
		out, err := exec.Command("nft", "list", "table", "bridge", DefaultTable).CombinedOutput()
		if err != nil {
			t.Fatalf("%s", out)
		}
		return string(out)
	}
	if !strings.Contains(listed(), hostIf(a)) {
		t.Errorf("no rule for the pod in %s", listed())
	}
	if err := n.Del(context.Background(), a); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(listed(), hostIf(a)) {
		t.Errorf("a rule is left in %s", listed())
	}
}

// Pods that another process connects, a runtime's plugin, send by its rules: whose node keeps
// the bridge and its routes knows none of them.
func TestPodsOfAnotherProcess(t *testing.T) {
	plugin := newNetwork(t)
	cfg := plugin.cfg
	cfg.Table, cfg.StateDir, cfg.Elsewhere = "shoal-pods", filepath.Join(t.TempDir(), "cni"), true
	agent, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := agent.Cleanup(); err != nil {
			t.Error("cleanup:", err)
		}
	})
	if err := agent.Ensure(); err != nil {
		t.Fatal(err)
	}
	a, _ := attach(t, plugin, "a")
	b, rb := attach(t, plugin, "b")
	serve(t, b.NetNS, ":80")
	target := netip.AddrPortFrom(rb.Addrs[0], 80).String()
	for _, from := range []string{"", a.NetNS} {
		if _, err := askFor(t, from, target, 10*time.Second); err != nil {
			t.Errorf("from %q: %v", from, err)
		}
		if err := agent.Ensure(); err != nil { // as after a restart
			t.Error(err)
		}
	}
	if _, err := askFor(t, "", target, 10*time.Second); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

// Host ports answer on addresses of the node, whatever a pod asks for.
func TestHostPortsTakeNothingOfTheCluster(t *testing.T) {
	n := newNetwork(t)
	n.cfg.DNS = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("169.254.20.10")}
	n.cfg.OwnPorts = []podnet.HostPort{{HostPort: 10250, Protocol: "TCP"}}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range n.cfg.DNS { // as the agent's DNS does
		addr := &netlink.Addr{IPNet: hostNet(a)}
		if err := netlink.AddrReplace(lo, addr); err != nil {
			t.Fatal(err)
		}
		defer netlink.AddrDel(lo, addr)
	}
	away := "10.244.7.99" // no address of the node
	a, _ := attach(t, n, "a", podnet.HostPort{HostPort: 8080, ContainerPort: 80, Protocol: "TCP"},
		podnet.HostPort{HostIP: away, HostPort: 8081, ContainerPort: 80, Protocol: "TCP"})
	b, _ := attach(t, n, "b")
	serve(t, a.NetNS, ":80")
	for _, from := range []string{"", b.NetNS} {
		for _, addr := range []string{"10.96.0.10:8080", "169.254.20.10:8080", "10.244.7.99:8081"} {
			if _, err := askFor(t, from, addr, 2*time.Second); err == nil {
				t.Errorf("a host port answers on %s, from %q", addr, from)
			}
		}
	}
	if _, err := ask(t, b.NetNS, "10.244.7.1:8080"); err != nil {
		t.Errorf("the host port does not answer on the node's address: %v", err)
	}
	for _, p := range []podnet.HostPort{
		{HostIP: "10.96.0.1", HostPort: 443, ContainerPort: 80, Protocol: "TCP"},
		{HostIP: n.cfg.DNS[1].String(), HostPort: 53, ContainerPort: 80, Protocol: "UDP"},
		{HostPort: 10250, ContainerPort: 80, Protocol: "tcp"},
	} {
		c := podnet.Sandbox{ID: "c", IfName: "eth0", NetNS: nstest.New(t), HostPorts: []podnet.HostPort{p}}
		if _, err := n.Add(context.Background(), c); err == nil || !strings.Contains(err.Error(), "host port") {
			t.Errorf("%v: got %v", p, err)
		}
	}
}

// An earlier version forwarded host ports before Services; its chains go.
func TestHostPortsOfAnEarlierVersion(t *testing.T) {
	n := newNetwork(t)
	if err := n.Ensure(); err != nil {
		t.Fatal(err)
	}
	old := ""
	for _, hook := range []string{"prerouting", "output"} {
		old += fmt.Sprintf(
			"add chain ip %[1]s %[2]s { type nat hook %[2]s priority -101; }\nadd rule ip %[1]s %[2]s fib daddr type local dnat ip to meta l4proto . th dport map @hostports\n",
			DefaultTable, hook)
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(old)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	for range 2 { // the second time nothing is left to do
		if err := n.Ensure(); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("nft", "list", "table", "ip", DefaultTable).CombinedOutput()
		if err != nil || strings.Contains(string(out), "chain prerouting") ||
			strings.Contains(string(out), "chain output") || !strings.Contains(string(out), "chain host-ports ") {
			t.Errorf("%v %s", err, out)
		}
	}
}
