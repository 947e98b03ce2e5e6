package network

import (
	"context"
	"net/netip"
	"reflect"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/cni"
)

// Gossip is what Run needs of the gossip.
type Gossip interface {
	Members() []gossip.Member
	Changed() <-chan struct{}
}

// routesRetry is how often routes are tried again that could not be made.
const routesRetry = 30 * time.Second

// Run keeps the routes to the other nodes' pods until ctx ends.
func (m *Manager) Run(ctx context.Context, g Gossip) error {
	changed := g.Changed()
	var done []cni.Peer
	var told string
	for {
		var retry <-chan time.Time
		peers := peersOf(g.Members())
		switch n := m.ownNetwork(); {
		case n == nil || m.third.current() != nil:
			if len(peers) > 0 {
				retry = time.After(routesRetry) // until the pod CIDR is known
			}
		case done == nil || !reflect.DeepEqual(peers, done):
			if err := n.SyncRoutes(peers); err != nil {
				if err.Error() != told {
					told = err.Error()
					m.log.Warn("some pods of other nodes cannot be reached", "err", err)
				}
				done, retry = nil, time.After(routesRetry)
				break
			}
			done, told = peers, ""
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-retry:
		}
	}
}

// peersOf lists the members that route pods. A dead one keeps its routes: it
// may only be deaf, and nothing else has its pods.
func peersOf(members []gossip.Member) []cni.Peer {
	peers := []cni.Peer{}
	for _, mem := range members {
		if mem.Local || mem.State == gossip.StateLeft || len(mem.PodCIDRs) == 0 {
			continue
		}
		via := mem.Addr.Addr()
		for _, a := range mem.NodeIPs {
			if a.Is4() {
				via = a
				break
			}
		}
		peers = append(peers, cni.Peer{PodCIDRs: append([]netip.Prefix(nil), mem.PodCIDRs...), Via: via})
	}
	return peers
}
