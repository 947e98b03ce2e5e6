package proxy

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/cni/conntrack"
	"github.com/shoal-project/shoal/cni/nft"
)

// oldFlows collects the UDP and SCTP destinations whose backends changed. A flow to one
// of them that does not lead to a valid backend is ended, so that its next packet chooses
// anew. For UDP that also covers flows begun while there was no backend. A client of SCTP
// often has one port, and tries again from it: each try keeps the old flow alive.
type oldFlows struct {
	dests map[elem]map[netip.AddrPort]bool // where flows go : valid backends
	local []netip.Addr                     // where node ports answer
}

// endable are the protocols whose flows are ended by hand.
var endable = []string{"UDP", "SCTP"}

func (u *oldFlows) add(old, now *service.Service) {
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
		if !slices.Contains(endable, p.Protocol) {
			continue
		}
		if moved && p.Protocol == "UDP" && findPort(old, p) != nil {
			u.addPort(old, p, false) // those that it keeps are told anew
		}
		if moved || u.has(now, p) || !onlyMore(findPort(old, p), p) {
			u.addPort(now, p, true)
		}
	}
}

// elemsOf are all that a port is known by.
func elemsOf(s *service.Service, p *service.Port) (all []elem) {
	proto := nft.Proto(p.Protocol)
	for _, list := range [][]netip.Addr{s.ClusterIPs, s.ExternalIPs, s.BalancerIPs} {
		for _, a := range list {
			all = append(all, elem{a, proto, p.Number})
		}
	}
	if p.NodePort != 0 {
		all = append(all, elem{proto: proto, port: p.NodePort})
	}
	return all
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

func (u *oldFlows) addPort(s *service.Service, p *service.Port, current bool) {
	if u.dests == nil {
		u.dests = map[elem]map[netip.AddrPort]bool{}
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
	for _, e := range elemsOf(s, p) {
		u.dests[e] = valid
	}
}

func (u *oldFlows) empty() bool { return len(u.dests) == 0 }

// has tells whether an earlier change of a port waits.
func (u *oldFlows) has(s *service.Service, p *service.Port) bool {
	return !u.empty() && slices.ContainsFunc(elemsOf(s, p), func(e elem) bool { return u.dests[e] != nil })
}

// clear ends the flows; nothing to do costs nothing. NodePorts answer at the addresses
// local, as far as it can be called.
func (u *oldFlows) clear(local func() ([]netip.Addr, error), families []*renderer) (err error) {
	if u.empty() {
		return nil
	}
	for e := range u.dests {
		if !e.addr.IsValid() {
			u.local, err = local()
			break
		}
	}
	for _, r := range families {
		err = errors.Join(err, conntrack.End(uint8(r.Family.AF()), func(f conntrack.Flow) bool {
			return u.ends(elem{f.To.Addr(), f.Proto, f.To.Port()}, f.By)
		}))
	}
	return err
}

// ends tells whether a flow to an address that leads to a backend is to end. One that
// leads where it was sent to is from before the Service. On a node port only what is
// sent to the node is ours: the same number may be a server's elsewhere, another
// Service's, or a host port on an address without NodePorts.
func (u *oldFlows) ends(to elem, backend netip.AddrPort) bool {
	if valid, ok := u.dests[to]; ok {
		return !valid[backend]
	}
	valid, ok := u.dests[elem{proto: to.proto, port: to.port}]
	return ok && !valid[backend] && slices.Contains(u.local, to.addr)
}
