package firewalld

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// Uplinks names the interfaces by which the node reaches others: those with its addresses,
// and those of the default routes.
func Uplinks(node []netip.Addr) (names []string, err error) {
	var indices []int
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("addresses of the node: %w", err)
	}
	for _, own := range node {
		for _, a := range all {
			if a.IP.Equal(own.AsSlice()) {
				indices = append(indices, a.LinkIndex)
			}
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := netlink.RouteList(nil, family)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("routes of the node: %w", err)
		}
		for _, r := range list {
			if r.Dst != nil {
				if ones, _ := r.Dst.Mask.Size(); ones > 0 {
					continue
				}
			}
			indices = append(indices, r.LinkIndex)
			for _, hop := range r.MultiPath {
				indices = append(indices, hop.LinkIndex)
			}
		}
	}
	for _, i := range indices {
		l, err := netlink.LinkByIndex(i)
		if err == nil && l.Attrs().Flags&net.FlagLoopback == 0 && !slices.Contains(names, l.Attrs().Name) {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}
