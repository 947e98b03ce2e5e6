package proxy

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/service"
)

// udpFlows collects the UDP destinations whose backends changed. A flow to one
// of them that does not lead to a current backend is ended, so that its next
// packet chooses anew. That also covers flows begun while there was no backend.
type udpFlows struct {
	dests map[netip.AddrPort]map[netip.AddrPort]bool // Service address and port : valid backends
	ports map[uint16]map[netip.AddrPort]bool         // the same for node ports
}

func (u *udpFlows) add(old, now *service.Service) {
	for _, s := range []*service.Service{old, now} {
		if s == nil {
			continue
		}
		for i := range s.Ports {
			if p := &s.Ports[i]; p.Protocol == "UDP" {
				u.addPort(s, p, s == now)
			}
		}
	}
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

// clear ends the flows; nothing to do costs nothing.
func (u *udpFlows) clear() error {
	if len(u.dests) == 0 && len(u.ports) == 0 {
		return nil
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, u); err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	return nil
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (u *udpFlows) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != protoUDP {
		return false
	}
	dst, ok := netip.AddrFromSlice(f.Forward.DstIP.To4())
	if !ok {
		return false
	}
	backend, _ := netip.AddrFromSlice(f.Reverse.SrcIP.To4())
	to := netip.AddrPortFrom(backend, f.Reverse.SrcPort)
	if valid, ok := u.dests[netip.AddrPortFrom(dst, f.Forward.DstPort)]; ok {
		return !valid[to]
	}
	// On a node port only what was rewritten is ours: the same number may be a
	// server's elsewhere.
	if valid, ok := u.ports[f.Forward.DstPort]; ok && backend != dst {
		return !valid[to]
	}
	return false
}
