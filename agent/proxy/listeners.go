package proxy

import (
	"net/netip"
	"slices"

	"github.com/shoal-project/shoal/agent/gossip"
)

// Listeners are where the cluster's daemons listen. Others' ports are taken to
// be as this node's, where the gossip does not tell them.
type Listeners struct {
	// NodeIPs and Ports are those of this node's agent.
	NodeIPs []netip.Addr
	Ports   []uint16
	// GossipPort is the agents' port of the gossip.
	GossipPort uint16
	// Members are those of the gossip; nil without it.
	Members func() []gossip.Member
}

func (l Listeners) members() []gossip.Member {
	if l.Members == nil {
		return nil
	}
	return l.Members()
}

// All are the listeners of all daemons. Of an agent's word only what is at its
// Node's addresses counts.
func (l Listeners) All() []netip.AddrPort {
	out := l.at(l.NodeIPs)
	for _, m := range l.members() {
		if m.Role == gossip.RoleCoordinator || slices.Contains(m.NodeIPs, m.Addr.Addr()) {
			out = append(out, m.Addr)
		}
		out = append(out, l.at(m.NodeIPs)...)
	}
	return out
}

func (l Listeners) at(addrs []netip.Addr) []netip.AddrPort {
	var out []netip.AddrPort
	for _, ip := range addrs {
		for _, p := range l.Ports {
			out = append(out, netip.AddrPortFrom(ip, p))
		}
	}
	return out
}

// Gossip is where the gossip listens on this node and on others; nowhere without
// it. A member's own word for its port does not count, lest it take another port
// from all pods.
func (l Listeners) Gossip() []netip.AddrPort {
	if l.Members == nil {
		return nil
	}
	var out []netip.AddrPort
	members := l.Members()
	for _, m := range members {
		if m.Role == gossip.RoleCoordinator {
			out = append(out, m.Addr)
		}
	}
	for _, ip := range slices.Concat(l.NodeIPs, gossip.NodeAddresses(members)) {
		out = append(out, netip.AddrPortFrom(ip, l.GossipPort))
	}
	return out
}
