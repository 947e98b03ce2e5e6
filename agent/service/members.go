package service

import (
	"context"
	"net/netip"
	"slices"

	"github.com/shoal-project/shoal/agent/gossip"
)

// Members are the nodes and coordinators that the gossip knows.
type Members interface {
	Members() []gossip.Member
	// Changed holds a token whenever Members may answer differently.
	Changed() <-chan struct{}
}

// FollowMembers keeps traffic from nodes that the gossip calls dead or leaving,
// and Services from nodes' addresses, until ctx ends. own are this node's.
func (s *Source) FollowMembers(ctx context.Context, g Members, own []netip.Addr) error {
	changed := g.Changed()
	for {
		members := g.Members()
		s.SetDown(down(members))
		s.SetNodes(slices.Concat(own, gossip.NodeAddresses(members)))
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func down(members []gossip.Member) map[string]bool {
	out := map[string]bool{}
	for _, m := range members {
		if m.Role == gossip.RoleAgent && m.State != gossip.StateAlive && m.State != gossip.StateUnheard {
			out[m.Name] = true
		}
	}
	return out
}
