package cni

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/podnet"
)

// newNetworkOf is a network with these ranges of the node's.
func newNetworkOf(t testing.TB, dir, podCIDRs string) *Network {
	t.Helper()
	n, err := New(Config{
		PodCIDRs:     cidr.Parse(podCIDRs),
		ClusterCIDRs: cidr.Parse("10.244.0.0/16,fd00:10:244::/56"),
		ServiceCIDRs: cidr.Parse("10.96.0.0/16,fd00:10:96::/112"),
		StateDir:     dir,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Cleanup(); err != nil {
			t.Error("cleanup:", err)
		}
	})
	return n
}

const (
	bothRanges = "10.244.7.0/24,fd00:10:244:7::/64"
	onlyV6     = "fd00:10:244:7::/64"
)

// DS-1: pods of both families, and of IPv6 alone, reach each other and the node by each
// address, and are reached by it.
func TestFamilies(t *testing.T) {
	for ranges, want := range map[string]string{
		bothRanges:                         "[10.244.7.2 fd00:10:244:7::2]",
		"fd00:10:244:7::/64,10.244.7.0/24": "[fd00:10:244:7::2 10.244.7.2]",
		onlyV6:                             "[fd00:10:244:7::2]",
	} {
		t.Run(strings.ReplaceAll(ranges, "/", "_"), func(t *testing.T) {
			n := newNetworkOf(t, filepath.Join(t.TempDir(), "cni"), ranges)
			a, ra := attach(t, n, "a")
			b, rb := attach(t, n, "b", podnet.HostPort{HostPort: 8080, ContainerPort: 80})
			if got := fmt.Sprint(ra.Addrs); got != want {
				t.Errorf("addresses %s, want %s", got, want)
			}
			serve(t, b.NetNS, ":80")
			for i, own := range ra.Addrs {
				to := netip.AddrPortFrom(rb.Addrs[i], 80).String()
				if got, err := ask(t, a.NetNS, to); err != nil || got != own.String() {
					t.Errorf("%s from a pod: %q, %v; want %s", to, got, err, own)
				}
				if got, err := ask(t, "", to); err != nil || got != ra.Gateways[i].String() {
					t.Errorf("%s from the node: %q, %v", to, got, err)
				}
				// NET-6: a host port, for others, for the node, and for the pod itself.
				at := netip.AddrPortFrom(ra.Gateways[i], 8080).String()
				for _, from := range []string{"", a.NetNS, b.NetNS} {
					if _, err := ask(t, from, at); err != nil {
						t.Errorf("host port %s from %q: %v", at, from, err)
					}
				}
			}
			if err := n.Check(context.Background(), b); err != nil {
				t.Error(err)
			}
			if err := n.Del(context.Background(), b); err != nil {
				t.Error(err)
			}
			br, err := netlink.LinkByName(DefaultBridge)
			if err != nil {
				t.Fatal(err)
			}
			left, err := netlink.NeighList(br.Attrs().Index, netlink.FAMILY_V6)
			for _, l := range left {
				if l.IP.Equal(rb.Addrs[len(rb.Addrs)-1].AsSlice()) && l.State == netlink.NUD_PERMANENT {
					t.Errorf("the node still knows %v, %v", l, err)
				}
			}
		})
	}
}

// A network that gets the other family goes on with the pods of before.
func TestSecondFamilyComesLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cni")
	n := newNetworkOf(t, dir, "10.244.7.0/24")
	old, ro := attach(t, n, "old", podnet.HostPort{HostPort: 8080, ContainerPort: 80})
	serve(t, old.NetNS, ":80")
	n = newNetworkOf(t, dir, bothRanges)
	if err := n.Ensure(); err != nil {
		t.Fatal(err)
	}
	fresh, rf := attach(t, n, "fresh")
	serve(t, fresh.NetNS, ":80")
	if len(ro.Addrs) != 1 || len(rf.Addrs) != 2 {
		t.Fatalf("addresses %v, %v", ro.Addrs, rf.Addrs)
	}
	for _, c := range []struct{ from, to string }{
		{fresh.NetNS, netip.AddrPortFrom(ro.Addrs[0], 80).String()},
		{old.NetNS, netip.AddrPortFrom(rf.Addrs[0], 80).String()},
		{"", "10.244.7.1:8080"},
		{"", netip.AddrPortFrom(rf.Addrs[1], 80).String()},
	} {
		if _, err := ask(t, c.from, c.to); err != nil {
			t.Errorf("%s: %v", c.to, err)
		}
	}
	// What it has is all that it gets, also when it is asked for again.
	if err := n.Del(context.Background(), old); err != nil {
		t.Error(err)
	}
	// And back: who has two addresses keeps the one that there still is.
	n = newNetworkOf(t, dir, "10.244.7.0/24")
	if err := n.Ensure(); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, "", netip.AddrPortFrom(rf.Addrs[0], 80).String()); err != nil {
		t.Error(err)
	}
	if err := n.GC(context.Background(), nil); err != nil {
		t.Error(err)
	}
	if ids, err := n.Owners(); err != nil || len(ids) > 0 {
		t.Errorf("owners %v, %v", ids, err)
	}
}

// IPv6 of pods works again after others have changed the node's network.
func TestRepairV6(t *testing.T) {
	n := newNetworkOf(t, filepath.Join(t.TempDir(), "cni"), bothRanges)
	if err := n.Ensure(); err != nil {
		t.Fatal(err)
	}
	for _, damage := range [][]string{{"nft", "flush", "ruleset"}, {"nft", "delete", "table", "ip6", DefaultTable},
		{"ip", "link", "set", DefaultBridge, "down"}, {"ip", "-6", "route", "flush", "dev", DefaultBridge},
		{"sysctl", "-w", "net.ipv6.conf.all.forwarding=0"}, {"ip", "link", "del", DefaultBridge}} {
		a, r := attach(t, n, strings.Join(damage, ""))
		serve(t, a.NetNS, ":80")
		if out, err := exec.Command(damage[0], damage[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if found, err := n.Repair(); err != nil || found == "" {
			t.Errorf("%v: not noticed: %v", damage, err)
		}
		if found, err := n.Repair(); err != nil || found != "" {
			t.Errorf("%v: not repaired: %q, %v", damage, found, err)
		}
		if got, err := ask(t, "", netip.AddrPortFrom(r.Addrs[1], 80).String()); err != nil || got != "fd00:10:244:7::1" {
			t.Errorf("%v: %q, %v", damage, got, err)
		}
	}
}

// A pod's IPv6 packets are from its own addresses and to the node; neither the node nor
// another pod believes what it says of hardware addresses and routes.
func TestPodSendsAsItselfOnlyV6(t *testing.T) {
	n := newNetworkOf(t, filepath.Join(t.TempDir(), "cni"), bothRanges)
	x := newAttacker(t, n)
	held, err := n.heldBy("attacker/eth0")
	if err != nil {
		t.Fatal(err)
	}
	own := held[1]
	me, gw, victim := macOf(x.addr), macOf(x.gateway), macOf(x.victim)
	other, router := netip.MustParseAddr("fd00:10:244:7::3"), netip.MustParseAddr("fd00:10:244:7::1")
	foreign := netip.MustParseAddr("2001:db8::66")
	node, err := net.ListenPacket("udp6", ":9998")
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	// The node asks where an address is that nobody has, which whoever answers would get.
	if asks, err := net.Dial("udp6", "[fd00:10:244:7::99]:9"); err != nil {
		t.Fatal(err)
	} else if _, err := asks.Write([]byte("secret")); err != nil {
		t.Fatal(err)
	} else {
		asks.Close()
	}
	packet := func(from, to netip.Addr, text string) []byte {
		return datagram6(netip.AddrPortFrom(from, 4444), netip.AddrPortFrom(to, 9998), text)
	}
	for _, f := range [][]byte{
		frame(gw, me, unix.ETH_P_IPV6, packet(foreign, router, "forged")),
		frame(gw, me, unix.ETH_P_IPV6, packet(other, router, "forged")),
		frame(gw, victim, unix.ETH_P_IPV6, packet(own, router, "forged")),
		frame(victim, me, unix.ETH_P_IPV6, packet(own, other, "forged")),
		frame(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, me, unix.ETH_P_IPV6,
			packet(own, netip.MustParseAddr("ff02::1"), "forged")),
		frame(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, me, unix.ETH_P_IPV6, routerAdvertisement()),
		// Here is the address that nobody has, and the one that another has.
		frame(gw, me, unix.ETH_P_IPV6, advertisement(own, router, netip.MustParseAddr("fd00:10:244:7::99"), me)),
		frame(gw, me, unix.ETH_P_IPV6, advertisement(own, router, other, me)),
	} {
		x.out.send(t, f)
	}
	x.out.send(t, frame(gw, me, unix.ETH_P_IPV6, packet(own, router, "honest")))
	_ = node.SetReadDeadline(time.Now().Add(time.Minute))
	b := make([]byte, 100)
	if size, from, err := node.ReadFrom(b); err != nil || string(b[:size]) != "honest" {
		t.Errorf("the node received %q from %v, %v", b[:size], from, err)
	}
	x.own(x.victim, "honest")
	for _, f := range x.in.until(t, "honest") {
		if strings.Contains(string(f), "forged") {
			t.Errorf("the other pod received % x", f)
		}
	}
	br, err := netlink.LinkByName(DefaultBridge)
	if err != nil {
		t.Fatal(err)
	}
	known, err := netlink.NeighList(br.Attrs().Index, netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range known {
		if len(k.HardwareAddr) > 0 && k.HardwareAddr.String() == me.String() && !k.IP.Equal(own.AsSlice()) {
			t.Errorf("the node believes that %s is at %s", k.IP, me)
		}
	}
	if addrs, _ := netlink.AddrList(br, netlink.FAMILY_V6); len(addrs) != 1 {
		t.Errorf("the bridge has %v, want the gateway's address alone", addrs)
	}
	if mode, err := readSysctl("net/ipv6/conf/all/forwarding"); err != nil || mode != "1" {
		t.Errorf("forwarding %s, %v", mode, err)
	}
}

// packet6 is an IPv6 packet; the payload's checksum is at an offset.
func packet6(from, to netip.Addr, next byte, payload []byte, checksum int) []byte {
	pseudo := append(from.AsSlice(), to.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(payload)))
	pseudo = append(append(pseudo, 0, 0, 0, next), payload...)
	if len(pseudo)%2 > 0 {
		pseudo = append(pseudo, 0)
	}
	sum := uint32(0)
	for i := 0; i < len(pseudo); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(pseudo[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(payload[checksum:], ^uint16(sum))
	b := binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(payload)))
	b = append(append(append(b, next, 255), from.AsSlice()...), to.AsSlice()...)
	return append(b, payload...)
}

func datagram6(from, to netip.AddrPort, text string) []byte {
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = append(binary.BigEndian.AppendUint16(b, uint16(8+len(text))), 0, 0)
	return packet6(from.Addr(), to.Addr(), unix.IPPROTO_UDP, append(b, text...), 6)
}

// advertisement says that an address is at a hardware address, in place of what was
// known (RFC 4861, section 4.4).
func advertisement(from, to, target netip.Addr, at net.HardwareAddr) []byte {
	b := append([]byte{136, 0, 0, 0, 0x60, 0, 0, 0}, target.AsSlice()...)
	return packet6(from, to, unix.IPPROTO_ICMPV6, append(append(b, 2, 1), at...), 2)
}
