package cni

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/cidr"
)

// Peer is another node: its pod networks and the address that leads to them.
type Peer struct {
	Name     string
	PodCIDRs cidr.Prefixes
	Via      netip.Addr
	// Nodes are all addresses of the node: for tunnels, and for pods of another family
	// than Via's.
	Nodes []netip.Addr
	// Self is this node as the peer sees it, End the peer as this node does.
	Self, End End
	// Seen is where its packets come from when it is hidden.
	Seen netip.Addr
	// Key and Port are of its WireGuard.
	Key  Key
	Port uint16
	// Inner is the key of its inner tunnel. Zero: it knows none, and what is handed on to it
	// is for the one between to read.
	Inner Key
	// Relay is the key of the peer that hands on packets to and from this one while there is
	// no session with it, and it with none of both ends: both are hidden. Zero: there is none.
	Relay Key
	// At is where the relay sees the packets of this peer's WireGuard come from.
	At netip.AddrPort
	// Since is when it was there again, by this node's clock.
	Since time.Time
}

// routeProtocol marks the routes that belong to SyncRoutes (rtnetlink(7),
// rtm_protocol; no other software is known to use the number).
const routeProtocol = 83

// SyncRoutes makes the node's routes to other nodes' pods exactly these. A peer
// that is not on a directly connected network is left out and named in the error.
func (n *Network) SyncRoutes(peers []Peer) error {
	have, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: routeProtocol},
			netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	var errs []error
	want := map[netip.Prefix]netip.Addr{}
	for _, p := range peers {
		for _, c := range p.PodCIDRs {
			own := slices.ContainsFunc(n.stacks, func(s stack) bool { return s.pool.prefix == c.Masked() })
			if via := p.via(c); via.IsValid() && n.stack(c.Addr()) != nil && !own {
				want[c.Masked()] = via
			}
		}
	}
	for _, r := range have {
		dst, gw := routeKey(r)
		if via, ok := want[dst]; ok && via == gw {
			delete(want, dst)
			continue
		}
		if _, ok := want[dst]; ok {
			continue // RouteReplace changes it without a gap
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("delete route to %s: %w", dst, err))
		}
	}
	for dst, via := range want {
		errs = append(errs, addRoute(dst, via))
	}
	return errors.Join(errs...)
}

// via is the node's address that leads to a range of its pods: one of the same family. The
// zero Addr: it has none.
func (p Peer) via(c netip.Prefix) netip.Addr {
	for _, a := range append([]netip.Addr{p.Via}, p.Nodes...) {
		if a.IsValid() && a.Is4() == c.Addr().Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func routeKey(r netlink.Route) (netip.Prefix, netip.Addr) {
	gw, _ := netip.AddrFromSlice(r.Gw)
	if r.Dst == nil {
		return netip.Prefix{}, gw.Unmap()
	}
	a, _ := netip.AddrFromSlice(r.Dst.IP)
	ones, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones), gw.Unmap()
}

func addRoute(dst netip.Prefix, via netip.Addr) error {
	path, err := netlink.RouteGet(via.AsSlice())
	if err != nil || len(path) == 0 {
		return fmt.Errorf("route to pods %s: node %s is not reachable: %w", dst, via, err)
	}
	if slices.ContainsFunc(path, func(r netlink.Route) bool { return len(r.Gw) > 0 }) {
		return fmt.Errorf(
			"route to pods %s: node %s is behind a router, which does not know pods", dst,
			via)
	}
	if path[0].Type == unix.RTN_LOCAL {
		return fmt.Errorf("route to pods %s: %s is this node's own address", dst, via)
	}
	r := &netlink.Route{Dst: prefixNet(dst), Gw: via.AsSlice(), LinkIndex: path[0].LinkIndex, Protocol: routeProtocol}
	if err := netlink.RouteReplace(r); err != nil {
		return fmt.Errorf("route to pods %s via %s: %w", dst, via, err)
	}
	return nil
}
