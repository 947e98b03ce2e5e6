package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/shoal-project/shoal/agent/service"
)

// udpFlows collects the UDP destinations whose backends changed. A flow to one
// of them that does not lead to a current backend is ended, so that its next
// packet chooses anew. That also covers flows begun while there was no backend.
type udpFlows struct {
	dests map[netip.AddrPort]map[netip.AddrPort]bool // Service address and port : valid backends
	ports map[uint16]map[netip.AddrPort]bool         // the same for node ports
	local []netip.Addr                               // where these answer
}

func (u *udpFlows) add(old, now *service.Service) {
	if old != nil {
		for i := range old.Ports {
			if p := &old.Ports[i]; p.Protocol == "UDP" && findPort(now, p) == nil {
				u.addPort(old, p, false)
			}
		}
	}
	if now == nil {
		return
	}
	moved := old != nil && !sameAddresses(old, now)
	for i := range now.Ports {
		p := &now.Ports[i]
		if p.Protocol != "UDP" {
			continue
		}
		if moved && findPort(old, p) != nil {
			u.addPort(old, p, false) // those that it keeps are told anew
		}
		if moved || u.has(now, p) || !onlyMore(findPort(old, p), p) {
			u.addPort(now, p, true)
		}
	}
}

func sameAddresses(a, b *service.Service) bool {
	return slices.Equal(a.ClusterIPs, b.ClusterIPs) && slices.Equal(a.ExternalIPs, b.ExternalIPs) &&
		slices.Equal(a.BalancerIPs, b.BalancerIPs)
}

func findPort(s *service.Service, like *service.Port) *service.Port {
	if s == nil {
		return nil
	}
	i := slices.IndexFunc(s.Ports, func(p service.Port) bool {
		return p.Number == like.Number && p.NodePort == like.NodePort && p.Protocol == like.Protocol
	})
	if i < 0 {
		return nil
	}
	return &s.Ports[i]
}

// onlyMore tells that a port lost no backend and had some: then every flow is
// still right, and the costly look through all of them is saved.
func onlyMore(old, now *service.Port) bool {
	if old == nil {
		return false
	}
	for _, r := range [][2]service.Route{{old.Cluster, now.Cluster}, {old.Internal, now.Internal},
		{old.External, now.External}} {
		if len(r[0].Backends) == 0 && len(r[1].Backends) > 0 {
			return false
		}
		for _, b := range r[0].Backends {
			if !r[1].Has(b.AddrPort) {
				return false
			}
		}
	}
	for _, b := range old.Lasting {
		if _, found := slices.BinarySearchFunc(now.Lasting, b, netip.AddrPort.Compare); !found {
			return false
		}
	}
	return true
}

func (u *udpFlows) addPort(s *service.Service, p *service.Port, current bool) {
	if u.dests == nil {
		u.dests, u.ports = map[netip.AddrPort]map[netip.AddrPort]bool{}, map[uint16]map[netip.AddrPort]bool{}
	}
	valid := map[netip.AddrPort]bool{}
	if current {
		for _, r := range []service.Route{p.Cluster, p.Internal, p.External} {
			for _, b := range r.Backends {
				valid[b.AddrPort] = true
			}
		}
		for _, b := range p.Lasting {
			valid[b] = true
		}
	}
	for _, list := range [][]netip.Addr{s.ClusterIPs, s.ExternalIPs, s.BalancerIPs} {
		for _, a := range list {
			u.dests[netip.AddrPortFrom(a, p.Number)] = valid
		}
	}
	if p.NodePort != 0 {
		u.ports[p.NodePort] = valid
	}
}

func (u *udpFlows) empty() bool { return len(u.dests) == 0 && len(u.ports) == 0 }

// has tells whether an earlier change of a port waits.
func (u *udpFlows) has(s *service.Service, p *service.Port) bool {
	if u.empty() {
		return false
	}
	if _, ok := u.ports[p.NodePort]; ok && p.NodePort != 0 {
		return true
	}
	for _, list := range [][]netip.Addr{s.ClusterIPs, s.ExternalIPs, s.BalancerIPs} {
		for _, a := range list {
			if _, ok := u.dests[netip.AddrPortFrom(a, p.Number)]; ok {
				return true
			}
		}
	}
	return false
}

// clear ends the flows; nothing to do costs nothing. NodePorts answer at the addresses
// local, as far as it can be called.
func (u *udpFlows) clear(local func() ([]netip.Addr, error), families []*renderer) (err error) {
	if u.empty() {
		return nil
	}
	if len(u.ports) > 0 {
		u.local, err = local()
	}
	for _, r := range families {
		_, clearErr := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(r.Family.AF()), u)
		err = errors.Join(err, clearErr)
	}
	if err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	return nil
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (u *udpFlows) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	return f.Forward.Protocol == protoUDP && u.ends(netip.AddrPortFrom(addrOf(f.Forward.DstIP), f.Forward.DstPort),
		netip.AddrPortFrom(addrOf(f.Reverse.SrcIP), f.Reverse.SrcPort))
}

// ends tells whether a flow to an address that leads to a backend is to end. One that
// leads where it was sent to is from before the Service. On a node port only what is
// sent to the node is ours: the same number may be a server's elsewhere, another
// Service's, or a host port on an address without NodePorts.
func (u *udpFlows) ends(to, backend netip.AddrPort) bool {
	if valid, ok := u.dests[to]; ok {
		return !valid[backend]
	}
	valid, ok := u.ports[to.Port()]
	return ok && !valid[backend] && slices.Contains(u.local, to.Addr())
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
