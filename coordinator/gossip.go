package main

import (
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-base/version"

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
func (s *parts) buildGossip() (*gossip.Group, error) {
	ca, err := keys(s.cfg).CA()
	if err != nil {
		return nil, err
	}
	pods, err := s.cfg.PodRanges()
	if err != nil {
		return nil, err
	}
	cfg := gossip.Config{
		Name:          s.gossipName(),
		BindAddr:      s.cfg.GossipBind,
		BindPort:      s.cfg.GossipPort,
		AdvertiseAddr: s.advertise.String(),
		Join:          s.cfg.GossipJoin,
		Deny:          pods,
		Log:           s.log,
		Nodes:         s.nodesInGossip(),
		Meta:          gossip.Meta{Role: gossip.RoleCoordinator, API: "https://" + s.external(), Node: s.toldNode()},
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
		if cfg.Trust, err = s.trusted(); err != nil {
			return nil, err
		}
		if cfg.Identity, err = gossip.NewIdentity(); err != nil {
			return nil, err
		}
		s.gossipID = cfg.Identity
		if cfg.Grant, err = s.grantOf(cfg.Name, cfg.Identity, ca, time.Now()); err != nil {
			return nil, err
		}
	}
	cfg.Meta.Votes = cfg.Trust != nil
	g, err := gossip.New(cfg)
	if err != nil {
		return nil, err
	}
	g.SetDigest(gossip.Digest{Version: version.Get().GitVersion})
	return g, nil
}

// nodesInGossip tells where the Nodes are that take part in the gossip, as their certificate
// shows. Addresses of the configuration may lead nowhere: it names a coordinator that is gone,
// or the machine that this one was restored from.
func (s *parts) nodesInGossip() func() map[string]netip.AddrPort {
	nodes := s.api.Informers().Core().V1().Nodes().Lister()
	return func() map[string]netip.AddrPort {
		all, err := nodes.List(labels.Everything())
		if err != nil {
			return nil
		}
		out := map[string]netip.AddrPort{}
		for _, n := range all {
			if at, ok := gossipAddress(n); ok {
				out[n.Name] = at
			}
		}
		return out
	}
}

// gossipAddress is where a Node's agent answers the gossip, unless its gossipPort is another.
func gossipAddress(n *corev1.Node) (at netip.AddrPort, ok bool) {
	if n.Annotations[gossip.CertificateAnnotation] == "" {
		return at, false
	}
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if a.Type == corev1.NodeInternalIP && err == nil && !ip.IsLoopback() {
			return netip.AddrPortFrom(ip.Unmap(), gossip.DefaultPort), true
		}
	}
	return at, false
}

// maxToldNode is the longest name of a Node that the gossip's metadata surely has room for.
const maxToldNode = 128

// toldNode is the Node on this machine, for the coordinator that leads.
func (s parts) toldNode() string {
	if name := nodeBeside(s.cfg); len(name) <= maxToldNode {
		return name
	}
	return ""
}

// grantOf is a coordinator's, later than all it had before: of two grants of one name members
// take the one that was issued later, so that after a restart with the clock set back nobody
// would hear this coordinator.
func (s parts) grantOf(name string, id *gossip.Identity, ca *pki.Authority, now time.Time) ([]byte, error) {
	file := filepath.Join(s.cfg.StateDir(), "gossip-issued")
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("gossip grant: %w", err)
	}
	if last, err := time.Parse(time.RFC3339Nano, strings.TrimSpace(string(text))); err == nil && !now.After(last) {
		now = last.Add(time.Millisecond) // grants tell milliseconds
	}
	if err := pki.WriteFile(file, []byte(now.UTC().Format(time.RFC3339Nano)+"\n"), 0o600); err != nil {
		// A full disk keeps no coordinator from starting.
		s.log.Warn("when this coordinator's gossip grant was issued is not noted: if the clock is set back and it "+
			"starts again, other members do not hear it before the old time has come", "err", err)
	}
	g := gossip.Grant{Role: gossip.RoleCoordinator, Key: id.PublicKey(), Issued: now, Expires: ca.Cert.NotAfter}
	return g.Sign(name, ca.Key())
}

// trusted are the cluster's CAs.
func (s parts) trusted() ([]*x509.Certificate, error) {
	files, err := keys(s.cfg).ReadFiles(pki.CAFile)
	if err != nil {
		return nil, err
	}
	return files.Trusted()
}

// regrant has the gossip believe the CAs of now, and this member show a grant of the one
// that signs.
func (s parts) regrant(ca *pki.Authority, trusted []*x509.Certificate) error {
	if s.gossip == nil || s.gossipID == nil {
		return nil
	}
	s.gossip.SetIdentity(s.gossipID, trusted)
	grant, err := s.grantOf(s.gossipName(), s.gossipID, ca, time.Now())
	if err != nil {
		return err
	}
	return s.gossip.SetGrant(grant)
}

// gossipName is this coordinator's.
func (s parts) gossipName() string { return coordinatorPrefix + hostName() + "/" + s.external() }

func signsGrants(ca *pki.Authority) bool {
	_, ok := ca.Key().Public().(*ecdsa.PublicKey)
	return ok && ca.Cert.PublicKeyAlgorithm == x509.ECDSA
}

// grants is what nodes' grants are made with; nil when the gossip proves nothing.
func (s parts) grants(ca *pki.Authority, trusted []*x509.Certificate, pods []netip.Prefix) *gossipgrant.Deps {
	if s.cfg.GossipInsecure || !signsGrants(ca) {
		return nil
	}
	services, err := config.Prefixes(s.cfg.ServiceCIDR)
	if err != nil {
		return nil // the API server is not built then
	}
	return &gossipgrant.Deps{CAs: trusted, Key: ca.Key(), ClusterCIDRs: pods, ServiceCIDRs: services}
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
