package cni

import (
	"errors"
	"fmt"
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
// has a /32 address and sends everything to the bridge. So also traffic within
// the node is routed, and Services work between neighbours without br_netfilter.
type link struct {
	sandbox podnet.Sandbox
	addr    netip.Addr
	gateway netip.Addr
	bridge  int
	group   uint32
	mtu     int
}

// macOf derives the hardware address from the IP address: a reused address
// keeps its neighbours' ARP entries true.
func macOf(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0x0a, 0x58, b[0], b[1], b[2], b[3]}
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
	veth.PeerHardwareAddr, veth.PeerMTU = macOf(l.addr), uint32(l.mtu)
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
	steps := []struct {
		what string
		do   func() error
	}{
		{"loopback up", func() error { return h.LinkSetUp(lo) }},
		{"address", func() error {
			return h.AddrReplace(eth, &netlink.Addr{IPNet: hostNet(l.addr)})
		}},
		{"interface up", func() error { return h.LinkSetUp(eth) }},
		{"gateway route", func() error {
			return h.RouteReplace(&netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_LINK, Dst: hostNet(l.gateway)})
		}},
		{"default route", func() error {
			return h.RouteReplace(&netlink.Route{LinkIndex: index, Gw: l.gateway.AsSlice()})
		}},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
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
	addrs, err := dump(func() ([]netlink.Addr, error) { return h.AddrList(eth, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("pod network: addresses of %s: %w", l.sandbox.IfName, err)
	}
	if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IP.Equal(l.addr.AsSlice()) }) {
		return fmt.Errorf("pod network: %s lacks the address %s", l.sandbox.IfName, l.addr)
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
