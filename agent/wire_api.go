package main

import (
	"context"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/server"
	"github.com/shoal-project/shoal/agent/trust"
)

// followCredentials has the gossip prove the node by the certificate that it has now, and
// all parts believe the cluster's CAs of now.
func (n whole) followCredentials(ctx context.Context) error {
	return n.server.Follow(ctx, func(c api.Credentials) error {
		if err := n.believe(c.CA, c.Told); err != nil {
			return err
		}
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

// believe has the kubelet's API believe other CAs, and show what the first has signed.
func (n whole) believe(cluster []byte, told bool) error {
	if n.manager != nil {
		n.manager.SetCluster(cluster, told)
	}
	if n.kubelet == nil {
		return nil
	}
	cas, err := server.ClientCAs(n.cfg.ClientCAFile, cluster)
	if err != nil {
		return err
	}
	n.kubelet.Auth.SetClientCAs(cas)
	return nil
}

// authorities answers who rotates the cluster's CA.
func (n whole) authorities(ctx context.Context) (r trust.Report, err error) {
	if err := n.server.LookAtAuthorities(ctx); err != nil {
		return r, err
	}
	now, err := n.server.Trusted()
	if err != nil {
		return r, err
	}
	if err := n.believe(now.PEM, true); err != nil { // Follow does so too, a moment later
		return r, err
	}
	r.Client, r.Serving = now.Followed, n.manager == nil || n.manager.Followed()
	for _, c := range now.List {
		r.Trusted = append(r.Trusted, trust.Print(c))
	}
	return r, nil
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
