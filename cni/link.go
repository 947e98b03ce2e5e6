package cni

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/podnet"
)

// link is one veth pair: its node side is a port of the bridge, its pod side
// has addresses without a network around them (/32, /128), one of each family, and
// sends everything to the bridge. So also traffic within
// the node is routed, and Services work between neighbours without br_netfilter.
type link struct {
	sandbox podnet.Sandbox
	ends    []end
	router  net.HardwareAddr // the bridge's
	bridge  int
	group   uint32
	mtu     int
}

// end is one address of a pod, with that of the node which leads on from there.
type end struct{ addr, gateway netip.Addr }

func (l link) addrs() (out []netip.Addr) {
	for _, e := range l.ends {
		out = append(out, e.addr)
	}
	return out
}

// macOf derives the hardware address from the IP addresses, of which there is one of
// each family at most: a reused address keeps its neighbours' ARP entries true. With
// both families it is by the IPv4 address.
func macOf(addrs ...netip.Addr) net.HardwareAddr {
	for _, a := range addrs {
		if a.Is4() {
			b := a.As4()
			return net.HardwareAddr{0x0a, 0x58, b[0], b[1], b[2], b[3]}
		}
	}
	// Within a range the last four bytes differ, of two ranges the sums mostly.
	b := addrs[0].As16()
	h := fnv.New32a()
	_, _ = h.Write(b[:12]) // never fails
	low := h.Sum32() ^ binary.BigEndian.Uint32(b[12:])
	return binary.BigEndian.AppendUint32(net.HardwareAddr{0x0a, 0x59}, low)
}

func (l link) connect() error {
	ns, err := netns.GetFromPath(l.sandbox.NetNS)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	if err := l.createPair(ns); err != nil {
		return err
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	defer h.Close()
	return l.configurePod(h)
}

// createPair makes the pair with its peer already in the pod. A pair left by an
// attempt that was cut short is replaced.
func (l link) createPair(ns netns.NsHandle) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Flags, attrs.MasterIndex = hostIf(l.sandbox), l.mtu, net.FlagUp, l.bridge
	attrs.Group = l.group
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = l.sandbox.IfName, netlink.NsFd(int(ns))
	veth.PeerHardwareAddr, veth.PeerMTU = macOf(l.addrs()...), uint32(l.mtu)
	err := netlink.LinkAdd(veth)
	if errors.Is(err, unix.EEXIST) {
		if err := deleteLink(attrs.Name); err != nil {
			return err
		}
		err = netlink.LinkAdd(veth)
	}
	if err != nil {
		return fmt.Errorf("create interface: %w", err)
	}
	port, err := netlink.LinkByName(attrs.Name)
	if err != nil {
		return fmt.Errorf("find interface: %w", err)
	}
	if err := setPort(port.Attrs().Index); err != nil {
		return fmt.Errorf("set up bridge port: %w", err)
	}
	return l.shape(port.Attrs().Index)
}

// loopback is lo's index in every network namespace.
const loopback = 1

func (l link) configurePod(h *netlink.Handle) error {
	eth, err := h.LinkByName(l.sandbox.IfName)
	if err != nil {
		return fmt.Errorf("find %s: %w", l.sandbox.IfName, err)
	}
	index := eth.Attrs().Index
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: loopback}}
	type step struct {
		what string
		do   func() error
	}
	steps := []step{{"loopback up", func() error { return h.LinkSetUp(lo) }}}
	for _, e := range l.ends {
		steps = append(steps, step{"address", func() error { return h.AddrReplace(eth, hostAddr(e.addr)) }})
	}
	steps = append(steps, step{"interface up", func() error { return h.LinkSetUp(eth) }})
	for _, e := range l.ends {
		if e.addr.Is6() {
			steps = append(steps, step{"gateway's hardware address", func() error {
				return h.NeighSet(neighbour(index, e.gateway, l.router))
			}})
		}
		steps = append(steps, step{"gateway route", func() error {
			return h.RouteReplace(&netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_LINK, Dst: hostNet(e.gateway)})
		}}, step{"default route", func() error {
			return h.RouteReplace(&netlink.Route{LinkIndex: index, Gw: e.gateway.AsSlice()})
		}})
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

// hostAddr is an address for an interface. Nobody else may have it, so that IPv6 needs
// not ask first (RFC 4862, 5.4).
func hostAddr(a netip.Addr) *netlink.Addr {
	out := &netlink.Addr{IPNet: hostNet(a)}
	if a.Is6() {
		out.Flags = unix.IFA_F_NODAD
	}
	return out
}

// neighbour says for good which hardware address an IPv6 address has: no pod is asked,
// and none is believed (sender.go).
func neighbour(index int, a netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: index, Family: netlink.FAMILY_V6, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac,
	}
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func prefixNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func (l link) check() error {
	if _, err := netlink.LinkByName(hostIf(l.sandbox)); err != nil {
		return fmt.Errorf("pod network: interface %s: %w", hostIf(l.sandbox), err)
	}
	ns, err := netns.GetFromPath(l.sandbox.NetNS)
	if err != nil {
		return fmt.Errorf("pod network: open network namespace: %w", err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("pod network: enter network namespace: %w", err)
	}
	defer h.Close()
	eth, err := h.LinkByName(l.sandbox.IfName)
	if err != nil {
		return fmt.Errorf("pod network: interface %s: %w", l.sandbox.IfName, err)
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return h.AddrList(eth, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("pod network: addresses of %s: %w", l.sandbox.IfName, err)
	}
	for _, e := range l.ends {
		if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IP.Equal(e.addr.AsSlice()) }) {
			return fmt.Errorf("pod network: %s lacks the address %s", l.sandbox.IfName, e.addr)
		}
	}
	return nil
}

// deleteLink removes an interface; one that is not there is no error.
func deleteLink(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

func removeState(parent, dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	// Other networks of this machine may keep theirs beside.
	if err := os.Remove(parent); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}
