package main

import (
	"os"

	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/joinapi"
	"github.com/shoal-project/shoal/coordinator/joining"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// maxGossip is how many members a machine that joins is told of: the gossip tells it
// of the others.
const maxGossip = 8

// joining is what machines that join are answered from.
func (s *parts) joining(dir pki.Dir, client kubernetes.Interface) joining.Config {
	return joining.Config{
		Client:     client,
		CA:         func() ([]byte, error) { return os.ReadFile(dir.Path(pki.CAFile)) },
		GossipKeys: func() ([]byte, error) { return os.ReadFile(dir.Path(pki.GossipKeyFile)) },
		Gossip:     s.gossipAddresses,
		Node: joinapi.Node{
			ClusterCIDR:   s.cfg.ClusterCIDR,
			ServiceCIDR:   s.cfg.ServiceCIDR,
			ClusterDNS:    s.cfg.DNSAddresses(),
			ClusterDomain: s.cfg.ClusterDomain,
		},
		Log: s.log,
	}
}

// gossipAddresses are where a new member finds the group: coordinators first, for
// they stay.
func (s *parts) gossipAddresses() (out []string) {
	if s.gossip == nil {
		return nil
	}
	members := s.gossip.Members()
	for _, role := range []gossip.Role{gossip.RoleCoordinator, gossip.RoleAgent} {
		for _, m := range members {
			if m.Role == role && m.State.Up() && !m.Addr.Addr().IsLoopback() && len(out) < maxGossip {
				out = append(out, m.Addr.String())
			}
		}
	}
	return out
}
