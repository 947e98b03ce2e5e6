package main

import (
	"crypto/ecdsa"
	"crypto/x509"
	"net/netip"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/controller/gossipgrant"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// coordinatorPrefix begins coordinators' names in the gossip. No Node has such a
// name: a colon is in none. The host and the API's address follow: two machines may
// have one name, and a restart is to go unnoticed.
const coordinatorPrefix = "coordinator:"

// buildGossip makes this coordinator a member with its own role. Its key lives
// as long as the process; the cluster's CA, which is at hand, signs its grant.
func buildGossip(s parts) (*gossip.Group, error) {
	ca, err := keys(s.cfg).CA()
	if err != nil {
		return nil, err
	}
	pods, err := config.Prefixes(s.cfg.ClusterCIDR)
	if err != nil {
		return nil, err
	}
	cfg := gossip.Config{
		Name:          coordinatorPrefix + hostName() + "/" + s.external(),
		BindAddr:      s.cfg.GossipBind,
		BindPort:      s.cfg.GossipPort,
		AdvertiseAddr: s.advertise.String(),
		Join:          s.cfg.GossipJoin,
		Deny:          pods,
		Log:           s.log,
		Meta:          gossip.Meta{Role: gossip.RoleCoordinator, API: "https://" + s.external()},
	}
	if cfg.BindPort == 0 {
		cfg.BindPort = -1
	}
	if cfg.Keys, err = gossip.LoadKeyring(keys(s.cfg).Path(pki.GossipKeyFile)); err != nil {
		return nil, err
	}
	switch {
	case s.cfg.GossipInsecure:
		s.log.Warn("the gossip believes whoever has its key (gossipInsecure), and routes no pods")
	case !signsGrants(ca):
		s.log.Warn("the gossip stays on this machine: the cluster's CA has no ECDSA key, whose signatures are short enough for it")
		cfg.BindAddr, cfg.AdvertiseAddr = "127.0.0.1", "127.0.0.1"
	default:
		if err := identify(&cfg, ca, time.Now()); err != nil {
			return nil, err
		}
	}
	return gossip.New(cfg)
}

func identify(cfg *gossip.Config, ca *pki.Authority, now time.Time) (err error) {
	if cfg.Identity, err = gossip.NewIdentity(); err != nil {
		return err
	}
	g := gossip.Grant{Role: gossip.RoleCoordinator, Key: cfg.Identity.PublicKey(), Issued: now,
		Expires: ca.Cert.NotAfter}
	cfg.Trust = gossip.Trust{ca.Cert}
	cfg.Grant, err = g.Sign(cfg.Name, ca.Key())
	return err
}

func signsGrants(ca *pki.Authority) bool {
	_, ok := ca.Key().Public().(*ecdsa.PublicKey)
	return ok && ca.Cert.PublicKeyAlgorithm == x509.ECDSA
}

// grants is what nodes' grants are made with; nil when the gossip proves nothing.
func (s parts) grants(ca *pki.Authority, pods []netip.Prefix) *gossipgrant.Deps {
	if s.cfg.GossipInsecure || !signsGrants(ca) {
		return nil
	}
	services, err := config.Prefixes(s.cfg.ServiceCIDR)
	if err != nil {
		return nil // the API server is not built then
	}
	return &gossipgrant.Deps{CA: ca.Cert, Key: ca.Key(), ClusterCIDRs: pods, ServiceCIDRs: services}
}

// otherCoordinators are those that the gossip knows to live.
func (s *parts) otherCoordinators() (names []string) {
	if s.gossip == nil {
		return nil
	}
	for _, m := range s.gossip.Members() {
		if m.Role == gossip.RoleCoordinator && !m.Local && m.State.Up() {
			names = append(names, m.Name+" "+m.API)
		}
	}
	return names
}
