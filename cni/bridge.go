package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nft"
)

const defaultMTU = 1500

// ensureBridge returns the bridge's index with everything about it as it must be.
func (n *Network) ensureBridge() (int, error) {
	if n.mtu = n.cfg.MTU; n.mtu == 0 {
		n.mtu = uplinkMTU()
	}
	attrs := netlink.NewLinkAttrs()
	// A bridge without a fixed address takes a port's, and changes with it.
	attrs.Name, attrs.MTU, attrs.HardwareAddr, attrs.Flags = n.cfg.Bridge, n.mtu, n.mac(), net.FlagUp
	err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, fmt.Errorf("create bridge %s: %w", n.cfg.Bridge, err)
	}
	br, err := netlink.LinkByName(n.cfg.Bridge)
	if err != nil {
		return 0, fmt.Errorf("find bridge %s: %w", n.cfg.Bridge, err)
	}
	if br.Type() != "bridge" {
		return 0, fmt.Errorf("interface %s exists and is no bridge; remove it or configure another name", n.cfg.Bridge)
	}
	if err := setSwitches(n.cfg.Bridge); err != nil {
		return 0, err
	}
	if err := n.setSwitches6(); err != nil {
		return 0, err
	}
	if err := n.setGateways(br); err != nil {
		return 0, err
	}
	if err := netlink.LinkSetUp(br); err != nil {
		return 0, fmt.Errorf("bring up %s: %w", n.cfg.Bridge, err)
	}
	if err := errors.Join(n.routePods(br), n.routeServices(br)); err != nil {
		return 0, err
	}
	return br.Attrs().Index, n.tellNeighbours(br.Attrs().Index)
}

// setGateways gives the bridge the gateways' addresses and takes away those of an
// earlier pod network.
func (n *Network) setGateways(br netlink.Link) error {
	want := map[string]*netlink.Addr{}
	for _, s := range n.stacks {
		a := hostAddr(s.gateway())
		a.Mask = net.CIDRMask(s.pool.prefix.Bits(), s.gateway().BitLen())
		want[a.IPNet.String()] = a
	}
	have, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(br, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", n.cfg.Bridge, err)
	}
	for _, a := range have {
		if want[a.IPNet.String()] != nil {
			continue
		}
		if err := netlink.AddrDel(br, &a); err != nil {
			return fmt.Errorf("remove address %s: %w", a.IPNet, err)
		}
	}
	if err := netlink.LinkSetHardwareAddr(br, n.mac()); err != nil {
		return fmt.Errorf("hardware address of %s: %w", n.cfg.Bridge, err)
	}
	for text, a := range want {
		if err := netlink.AddrReplace(br, a); err != nil {
			return fmt.Errorf("address %s: %w", text, err)
		}
	}
	return nil
}

// routePods makes the routes that the kernel makes with the gateways' addresses: somebody
// may have taken these away alone.
func (n *Network) routePods(br netlink.Link) error {
	for _, s := range n.stacks {
		r := &netlink.Route{
			LinkIndex: br.Attrs().Index, Dst: prefixNet(s.pool.prefix.Masked()), Protocol: unix.RTPROT_KERNEL,
		}
		if s.Family == nft.V4 {
			r.Scope, r.Src = netlink.SCOPE_LINK, s.gateway().AsSlice()
		} else {
			r.Priority = kernelMetric6
		}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("route to the node's pods %s: %w", s.pool.prefix, err)
		}
	}
	return nil
}

// kernelMetric6 is that of the routes that the kernel makes with IPv6 addresses
// (IP6_RT_PRIO_ADDRCONF).
const kernelMetric6 = 256

// serviceMetric lets any route that the administrator made win.
const serviceMetric = 4096

// routeServices gives the node's own packets to Service addresses a way and a
// source address; nftables rewrites the destination before they leave.
func (n *Network) routeServices(br netlink.Link) error {
	for _, p := range n.cfg.ServiceCIDRs {
		s := n.stack(p.Addr())
		if s == nil {
			continue
		}
		r := &netlink.Route{
			LinkIndex: br.Attrs().Index, Dst: prefixNet(p.Masked()), Scope: netlink.SCOPE_LINK, Priority: serviceMetric,
			Src: s.gateway().AsSlice(),
		}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("route Service addresses %s: %w", p, err)
		}
	}
	return nil
}

// uplinkMTU is the MTU of the interface with the default route.
func uplinkMTU() int {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
		})
		if err != nil {
			return defaultMTU
		}
		for _, r := range routes {
			if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil && l.Attrs().Index != loopback {
				return l.Attrs().MTU
			}
		}
	}
	return defaultMTU
}

// switchesOf turn on forwarding, let host ports be reached by loopback addresses, turn
// off the redirects that would tell neighbours on the bridge to go around the node's
// rules, and have the node believe nothing that a neighbour on the bridge tells about
// routes. IPv6 is switched in setSwitches6.
func switchesOf(bridge string) map[string]string {
	return map[string]string{
		forwarding4:                                     "1",
		"net/ipv4/conf/all/send_redirects":              "0",
		"net/ipv4/conf/" + bridge + "/send_redirects":   "0",
		"net/ipv4/conf/" + bridge + "/route_localnet":   "1", // host ports on 127.0.0.1; see addGuard
		"net/ipv4/conf/" + bridge + "/accept_redirects": "0",
		// as the bridge's rules, for as long as somebody has flushed them
		"net/ipv4/conf/" + bridge + "/rp_filter": "1",
		"net/ipv6/conf/" + bridge + "/accept_ra": "0",
	}
}

const forwarding4, forwarding6 = "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"

func setSwitches(bridge string) error {
	for path, value := range switchesOf(bridge) {
		if err := writeSysctl(path, value); err != nil {
			return err
		}
	}
	return nil
}

// setSwitches6 turns on what IPv6 pods need. Without any, IPv6 is off on the bridge,
// whose link-local address would lead to what the node serves; with some, the bridge
// has the gateway's address and no link-local one.
func (n *Network) setSwitches6() error {
	of := "net/ipv6/conf/" + n.cfg.Bridge + "/"
	if !n.has6() {
		return writeSysctl(of+"disable_ipv6", "1")
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return fmt.Errorf("pods are to have IPv6 addresses, which this kernel does not have (ipv6.disable=1?): %w", err)
	}
	if mode, err := readSysctl(of + "addr_gen_mode"); err != nil {
		return err
	} else if mode != addrGenNone {
		// It has a link-local address by now, which goes with all others.
		err := errors.Join(writeSysctl(of+"disable_ipv6", "1"), writeSysctl(of+"addr_gen_mode", addrGenNone))
		if err != nil {
			return err
		}
	}
	if err := errors.Join(writeSysctl(of+"disable_ipv6", "0"), writeSysctl(of+"accept_redirects", "0")); err != nil {
		return err
	}
	if err := keepAdvertisedRoutes(); err != nil {
		return err
	}
	return writeSysctl(forwarding6, "1")
}

func (n *Network) has6() bool {
	return slices.ContainsFunc(n.stacks, func(s stack) bool { return s.Family == nft.V6 })
}

// addrGenNone is IN6_ADDR_GEN_MODE_NONE (linux/if_link.h): no link-local address.
const addrGenNone = "1"

// keepAdvertisedRoutes has interfaces go on heeding router advertisements that the
// node has its default route of: with forwarding they would not any more, and lose it
// (Documentation/networking/ip-sysctl, accept_ra).
func keepAdvertisedRoutes() error {
	routes, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA},
			netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return fmt.Errorf("list IPv6 routes: %w", err)
	}
	for _, r := range routes {
		l, err := netlink.LinkByIndex(r.LinkIndex)
		if err != nil {
			continue // it has just gone
		}
		file := "net/ipv6/conf/" + l.Attrs().Name + "/accept_ra"
		if mode, err := readSysctl(file); err != nil || mode != "1" {
			continue
		}
		if err := writeSysctl(file, "2"); err != nil {
			return err
		}
	}
	return nil
}

// tellNeighbours tells the node the hardware addresses of all its pods' IPv6 addresses.
func (n *Network) tellNeighbours(bridge int) error {
	held, err := n.held()
	if err != nil {
		return err
	}
	for _, addrs := range held {
		if err := n.tellNeighbour(bridge, addrs); err != nil {
			return err
		}
	}
	return nil
}

// tellNeighbour is the same for one sandbox's.
func (n *Network) tellNeighbour(bridge int, addrs []netip.Addr) error {
	for _, a := range addrs {
		if !a.Is6() || n.stack(a) == nil {
			continue
		}
		if err := netlink.NeighSet(neighbour(bridge, a, macOf(addrs...))); err != nil {
			return fmt.Errorf("hardware address of %s: %w", a, err)
		}
	}
	return nil
}

// forgetNeighbours takes back tellNeighbour.
func forgetNeighbours(bridge int, addrs []netip.Addr) error {
	for _, a := range addrs {
		if !a.Is6() {
			continue
		}
		err := netlink.NeighDel(&netlink.Neigh{LinkIndex: bridge, Family: netlink.FAMILY_V6, IP: a.AsSlice()})
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("hardware address of %s: %w", a, err)
		}
	}
	return nil
}

func readSysctl(path string) (string, error) {
	text, err := os.ReadFile(filepath.Join("/proc/sys", path))
	return strings.TrimSpace(string(text)), err
}

func writeSysctl(path, value string) error {
	file := filepath.Join("/proc/sys", path)
	old, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil // a kernel without IPv6
	}
	if err == nil && strings.TrimSpace(string(old)) == value {
		return nil
	}
	if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s=%s: %w", strings.ReplaceAll(path, "/", "."), value, err)
	}
	return nil
}

// deleteBridge removes the bridge, every port of it, and what shapes their traffic,
// which may be there without it.
func (n *Network) deleteBridge() error {
	bridge, found := 0, false
	br, err := netlink.LinkByName(n.cfg.Bridge)
	switch {
	case err == nil:
		bridge = br.Attrs().Index
	case !errors.As(err, &netlink.LinkNotFoundError{}):
		return fmt.Errorf("find bridge: %w", err)
	}
	links, err := dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		at := l.Attrs()
		port := bridge != 0 && at.MasterIndex == bridge && l.Type() == "veth"
		shapes := at.Group == portGroup(n.cfg.Bridge) && l.Type() == "ifb"
		if bridge != 0 && at.Index == bridge || port || shapes {
			there, err := condemn(at.Name)
			if err != nil {
				return err
			}
			found = found || there
		}
	}
	if !found {
		return nil
	}
	if err := deleteGroup(reapGroup); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete bridge and its ports: %w", err)
	}
	return nil
}
