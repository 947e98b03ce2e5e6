package network

import (
	"net/netip"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
)

// TestPeersOfDeadNode: a dead member keeps its range until a living one has it.
func TestPeersOfDeadNode(t *testing.T) {
	cidr := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	dead := gossip.Member{Name: "old", State: gossip.StateDead, Meta: gossip.Meta{Role: gossip.RoleAgent},
		PodCIDRs: cidr, NodeIPs: []netip.Addr{netip.MustParseAddr("10.99.0.2")}}
	alive := gossip.Member{Name: "new", State: gossip.StateAlive, Meta: gossip.Meta{Role: gossip.RoleAgent},
		PodCIDRs: cidr, NodeIPs: []netip.Addr{netip.MustParseAddr("10.99.0.3")}}
	if got := peersOf([]gossip.Member{dead}); len(got) != 1 || got[0].Via != dead.NodeIPs[0] {
		t.Errorf("a dead member alone: %v", got)
	}
	for _, members := range [][]gossip.Member{{dead, alive}, {alive, dead}} {
		if got := peersOf(members); len(got) != 1 || got[0].Via != alive.NodeIPs[0] {
			t.Errorf("its range was given on: %v", got)
		}
	}
}

// TestPeersOfRevokedNode: a machine whose Node was deleted, and its range given
// on, keeps showing its old grant; the range is the new Node's, whatever the names.
func TestPeersOfRevokedNode(t *testing.T) {
	now := time.Now()
	member := func(name, cidr, via string, granted time.Time) gossip.Member {
		return gossip.Member{
			Name: name, State: gossip.StateAlive, Meta: gossip.Meta{Role: gossip.RoleAgent}, Granted: granted,
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)}, NodeIPs: []netip.Addr{netip.MustParseAddr(via)},
		}
	}
	fresh := member("m", "10.244.1.0/24", "10.99.0.3", now)
	other := member("o", "10.244.2.0/24", "10.99.0.4", now.Add(-2*time.Hour))
	for _, cidr := range []string{"10.244.1.0/24", "10.244.1.128/25", "10.244.0.0/17"} {
		for _, name := range []string{"a", "z"} {
			old := member(name, cidr, "10.99.0.2", now.Add(-time.Hour))
			got := peersOf([]gossip.Member{old, fresh, other})
			if len(got) != 2 || got[0].Via != fresh.NodeIPs[0] || got[1].Via != other.NodeIPs[0] {
				t.Errorf("%s with %s: %v", name, cidr, got)
			}
		}
	}
	gone := fresh
	gone.State = gossip.StateDead
	if got := peersOf([]gossip.Member{member("z", "10.244.1.0/24", "10.99.0.2", now.Add(-time.Hour)), gone}); len(
		got) != 1 || got[0].Via != fresh.NodeIPs[0] {
		t.Errorf("while the new Node is dead: %v", got)
	}
}

// TestPeersOfTwoFamilies: a node is one peer with the ranges of both families, also where it
// has an address of one alone: tunnels carry the other, too.
func TestPeersOfTwoFamilies(t *testing.T) {
	m := gossip.Member{Name: "m", State: gossip.StateAlive, Meta: gossip.Meta{Role: gossip.RoleAgent},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:1::/64")},
		NodeIPs:  []netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.1")}}
	got := peersOf([]gossip.Member{m})
	if len(got) != 1 || got[0].Via != m.NodeIPs[1] || len(got[0].PodCIDRs) != 2 || len(got[0].Nodes) != 2 {
		t.Errorf("both: %v", got)
	}
	m.NodeIPs = m.NodeIPs[1:]
	if got := peersOf([]gossip.Member{m}); len(got) != 1 || got[0].Via != m.NodeIPs[0] || len(got[0].PodCIDRs) != 2 {
		t.Errorf("with an address of IPv4 alone: %v", got)
	}
}
