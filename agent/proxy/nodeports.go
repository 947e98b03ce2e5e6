package proxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/shoal-project/shoal/cni/cidr"
)

// nodePorts are the ranges of the node's addresses on which NodePorts and health
// checks answer (SVC-39). A packet's destination is compared with a range and with
// the node's addresses of that moment, so that rules need not follow the latter.
type nodePorts cidr.Prefixes

// narrowed is what the ranges of one family ask for, nil for all of its addresses:
// where there is no range of it, or one is all of it, as for kube-proxy.
func narrowed(family cidr.Prefixes) (out cidr.Prefixes) {
	for _, p := range family {
		if p.Bits() == 0 {
			return nil
		}
		if p = p.Masked(); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

func (n nodePorts) v4() cidr.Prefixes { return narrowed(cidr.Prefixes(n).V4()) }
func (n nodePorts) v6() cidr.Prefixes { return narrowed(cidr.Prefixes(n).V6()) }

// everywhere tells whether all addresses count.
func (n nodePorts) everywhere() bool { return n.v4() == nil && n.v6() == nil }

// has tells whether an address of the node counts. A link-local address of IPv6 does
// not: it means nothing without an interface.
func (n nodePorts) has(a netip.Addr) bool {
	ranges := n.v4()
	if a.Is6() {
		ranges = n.v6()
	}
	return (ranges == nil || ranges.Contains(a)) && (a.Is4() || !a.IsLinkLocalUnicast())
}

// loopbacks are the ranges that ask for what there is not: NodePorts do not answer on
// loopback addresses, as with kube-proxy in its nftables mode.
func (n nodePorts) loopbacks() (out cidr.Prefixes) {
	for _, p := range n {
		if p.Addr().IsLoopback() {
			out = append(out, p)
		}
	}
	return out
}

// now lists the node's addresses that count, one invalid address for all.
func (n nodePorts) now() ([]netip.Addr, error) {
	if n.everywhere() {
		return []netip.Addr{{}}, nil
	}
	return n.list()
}

// list is now with every address by itself.
func (n nodePorts) list() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of the node: %w", err)
	}
	var out []netip.Addr
	for _, a := range list {
		ip, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		if addr := addrOf(ip.IP); n.has(addr) && !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	return out, nil
}

// follow puts a token in moved when the node's addresses may have changed, until ctx
// ends. Where the kernel does not tell, who looks from time to time finds out.
func (n nodePorts) follow(ctx context.Context, moved chan<- struct{}) error {
	if n.everywhere() {
		return nil
	}
	updates := make(chan netlink.AddrUpdate)
	if err := netlink.AddrSubscribe(updates, ctx.Done()); err != nil {
		return fmt.Errorf("follow the addresses of the node: %w", err)
	}
	for { // also once at the beginning, for what came before
		select {
		case moved <- struct{}{}:
		default:
		}
		if _, open := <-updates; !open { // closed by the library
			return nil
		}
	}
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
