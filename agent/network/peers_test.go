package network

import (
	"net/netip"
	"testing"

	"github.com/shoal-project/shoal/agent/gossip"
)

// TestPeersOfDeadNode: a dead member keeps its range until a living one has it.
func TestPeersOfDeadNode(t *testing.T) {
	cidr := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	dead := gossip.Member{Name: "old", State: gossip.StateDead, Meta: gossip.Meta{Role: gossip.RoleAgent}, PodCIDRs: cidr, NodeIPs: []netip.Addr{netip.MustParseAddr("10.99.0.2")}}
	alive := gossip.Member{Name: "new", State: gossip.StateAlive, Meta: gossip.Meta{Role: gossip.RoleAgent}, PodCIDRs: cidr, NodeIPs: []netip.Addr{netip.MustParseAddr("10.99.0.3")}}
	if got := peersOf([]gossip.Member{dead}); len(got) != 1 || got[0].Via != dead.NodeIPs[0] {
		t.Errorf("a dead member alone: %v", got)
	}
	for _, members := range [][]gossip.Member{{dead, alive}, {alive, dead}} {
		if got := peersOf(members); len(got) != 1 || got[0].Via != alive.NodeIPs[0] {
			t.Errorf("its range was given on: %v", got)
		}
	}
}
