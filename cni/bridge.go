package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const defaultMTU = 1500

// ensureBridge returns the bridge's index with everything about it as it must be.
func (n *Network) ensureBridge() (int, error) {
	if n.mtu = n.cfg.MTU; n.mtu == 0 {
		n.mtu = uplinkMTU()
	}
	gw := n.pool.gateway()
	attrs := netlink.NewLinkAttrs()
	// A bridge without a fixed address takes a port's, and changes with it.
	attrs.Name, attrs.MTU, attrs.HardwareAddr, attrs.Flags = n.cfg.Bridge, n.mtu, macOf(gw), net.FlagUp
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
	if err := n.setGateway(br, gw); err != nil {
		return 0, err
	}
	if err := netlink.LinkSetUp(br); err != nil {
		return 0, fmt.Errorf("bring up %s: %w", n.cfg.Bridge, err)
	}
	if err := n.routeServices(br); err != nil {
		return 0, err
	}
	return br.Attrs().Index, setSwitches(n.cfg.Bridge)
}

// whole tells whether bridge and nftables tables are still there.
func (n *Network) whole() bool {
	br, err := netlink.LinkByName(n.cfg.Bridge)
	if err != nil || br.Attrs().Index != n.bridge || br.Attrs().Flags&net.FlagUp == 0 {
		return false
	}
	return n.conn.Has(n.routedTable()) && n.conn.Has(n.bridgedTable())
}

// setGateway gives the bridge the gateway's address and takes away those of an
// earlier pod network.
func (n *Network) setGateway(br netlink.Link, gw netip.Addr) error {
	want := &net.IPNet{IP: gw.AsSlice(), Mask: net.CIDRMask(n.pool.prefix.Bits(), 32)}
	have, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(br, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", n.cfg.Bridge, err)
	}
	for _, a := range have {
		if a.IPNet.String() == want.String() {
			continue
		}
		if err := netlink.AddrDel(br, &a); err != nil {
			return fmt.Errorf("remove address %s: %w", a.IPNet, err)
		}
	}
	if err := netlink.LinkSetHardwareAddr(br, macOf(gw)); err != nil {
		return fmt.Errorf("hardware address of %s: %w", n.cfg.Bridge, err)
	}
	if err := netlink.AddrReplace(br, &netlink.Addr{IPNet: want}); err != nil {
		return fmt.Errorf("address %s: %w", want, err)
	}
	return nil
}

// serviceMetric lets any route that the administrator made win.
const serviceMetric = 4096

// routeServices gives the node's own packets to Service addresses a way and a
// source address; nftables rewrites the destination before they leave.
func (n *Network) routeServices(br netlink.Link) error {
	for _, p := range n.cfg.ServiceCIDRs.V4() {
		r := &netlink.Route{
			LinkIndex: br.Attrs().Index, Dst: prefixNet(p.Masked()), Scope: netlink.SCOPE_LINK, Priority: serviceMetric,
			Src: n.pool.gateway().AsSlice(),
		}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("route Service addresses %s: %w", p, err)
		}
	}
	return nil
}

// uplinkMTU is the MTU of the interface with the default route.
func uplinkMTU() int {
	routes, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
	})
	if err != nil {
		return defaultMTU
	}
	for _, r := range routes {
		if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			return l.Attrs().MTU
		}
	}
	return defaultMTU
}

// setSwitches turns on forwarding, lets host ports be reached by loopback
// addresses, turns off the redirects that would tell neighbours on the bridge to
// go around the node's rules, and has the node believe nothing that a neighbour
// on the bridge tells about routes. IPv6 is off on the bridge: pods have none, and
// the bridge's link-local address would lead to what the node serves.
func setSwitches(bridge string) error {
	for path, value := range map[string]string{
		"net/ipv4/ip_forward":                           "1",
		"net/ipv4/conf/all/send_redirects":              "0",
		"net/ipv4/conf/" + bridge + "/send_redirects":   "0",
		"net/ipv4/conf/" + bridge + "/route_localnet":   "1", // host ports on 127.0.0.1; see addGuard
		"net/ipv4/conf/" + bridge + "/accept_redirects": "0",
		// as the bridge's rules, for as long as somebody has flushed them
		"net/ipv4/conf/" + bridge + "/rp_filter":    "1",
		"net/ipv6/conf/" + bridge + "/accept_ra":    "0",
		"net/ipv6/conf/" + bridge + "/disable_ipv6": "1",
	} {
		if err := writeSysctl(path, value); err != nil {
			return err
		}
	}
	return nil
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
