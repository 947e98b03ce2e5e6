package main

import (
	"context"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/gossip"
)

// followCredentials has the gossip prove the node by the certificate that it has now.
func (n whole) followCredentials(ctx context.Context) error {
	return n.server.Follow(ctx, func(c api.Credentials) error {
		if n.group == nil || n.group.Certificate() == nil {
			return nil
		}
		id, trust, err := gossip.Identify(n.cfg.NodeName, c.Cert, c.Key, c.CA)
		if err != nil {
			return err
		}
		n.group.SetIdentity(id, trust)
		n.node.Poke() // shows the certificate to the API
		return nil
	})
}

// followCoordinators has the API asked where the gossip knows a coordinator to live.
func (n whole) followCoordinators(ctx context.Context) error {
	changed := n.group.Changed()
	for {
		n.server.SetCoordinators(coordinatorsOf(n.group.Members()))
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func coordinatorsOf(members []gossip.Member) (out []api.Coordinator) {
	for _, m := range members {
		if m.Role == gossip.RoleCoordinator && m.API != "" {
			out = append(out, api.Coordinator{URL: m.API, Dead: m.State != gossip.StateAlive})
		}
	}
	return out
}
