package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/agent/gossip"
)

// buildGossip makes this node a member, with its client certificate's key. The
// grant that it last had lets its neighbours know it while the API is away.
func (a *agent) buildGossip(context.Context) error {
	if a.cfg.GossipPort == 0 {
		return nil
	}
	cfg := gossip.Config{
		Name:          a.cfg.NodeName,
		BindPort:      a.cfg.GossipPort,
		AdvertiseAddr: a.facts.IPs[0],
		Join:          a.cfg.Join,
		Deny:          prefixes(strings.Split(a.cfg.ClusterCIDR, ",")...),
		Meta:          gossip.Meta{Role: gossip.RoleAgent},
		Log:           a.log,
	}
	if n := a.saved.Load(); n != nil {
		cfg.Grant = grantOf(n)
		cfg.Meta.Zone = n.Labels[v1.LabelTopologyZone]
	}
	if err := a.secureGossip(&cfg); err != nil {
		return err
	}
	var err error
	a.gossip, err = gossip.New(cfg)
	return err
}

// secureGossip gives the gossip its keys. Without them it stays on this machine,
// unless the configuration says otherwise.
func (a *agent) secureGossip(cfg *gossip.Config) error {
	var err error
	if a.cfg.GossipKeyFile != "" {
		if cfg.Keys, err = gossip.LoadKeyring(a.cfg.GossipKeyFile); err != nil {
			return err
		}
	}
	if a.cfg.GossipInsecure {
		a.log.Warn("the gossip believes every member (gossipInsecure), and routes no pods")
		return nil
	}
	missing := errors.New("no gossipKeyFile is configured")
	if cfg.Keys != nil {
		if cfg.Identity, cfg.Trust, missing = nodeIdentity(a.rest, a.cfg.NodeName); missing == nil {
			return nil
		}
	}
	a.log.Info("the gossip stays on this machine", "reason", missing)
	cfg.BindAddr, cfg.AdvertiseAddr, cfg.Join = "127.0.0.1", "127.0.0.1", nil
	return nil
}

// nodeIdentity is the node's client certificate and key, and the authority
// whose grants count, both from the kubeconfig.
func nodeIdentity(rc *rest.Config, node string) (*gossip.Identity, gossip.Trust, error) {
	if rc == nil {
		return nil, nil, errors.New("no kubeconfig is configured")
	}
	c := rest.CopyConfig(rc)
	if err := rest.LoadTLSFiles(c); err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if len(c.CertData) == 0 {
		return nil, nil, errors.New("the kubeconfig has no client certificate of system:node:" + node)
	}
	id, err := gossip.LoadIdentity(c.CertData, c.KeyData)
	if err != nil {
		return nil, nil, err
	}
	trust, err := gossip.ParseTrust(c.CAData)
	return id, trust, err
}

// identityEvery is how often the files of the certificate are looked at: one
// that is renewed has months to go.
const identityEvery = time.Minute

// followIdentity takes the client certificate anew when its files change.
func (a *agent) followIdentity(ctx context.Context) error {
	if a.gossip.Certificate() == nil {
		return nil
	}
	old := a.identityFiles()
	told := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(identityEvery):
		}
		now := a.identityFiles()
		if now == old {
			continue
		}
		if err := a.renewIdentity(); err != nil {
			if err.Error() != told {
				told = err.Error()
				a.log.Warn("the gossip keeps its old certificate", "error", err)
			}
			continue
		}
		old, told = now, ""
	}
}

func (a *agent) renewIdentity() error {
	rc, err := clientcmd.BuildConfigFromFlags("", a.cfg.Kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", a.cfg.Kubeconfig, err)
	}
	id, trust, err := nodeIdentity(rc, a.cfg.NodeName)
	if err != nil {
		return err
	}
	a.gossip.SetIdentity(id, trust)
	a.node.Poke() // shows the certificate to the API
	return nil
}

// identityFiles tells by size and time whether the files of the certificate are
// still the same.
func (a *agent) identityFiles() string {
	var out strings.Builder
	for _, path := range []string{a.cfg.Kubeconfig, a.rest.CertFile, a.rest.KeyFile, a.rest.CAFile} {
		if info, err := os.Stat(path); err == nil {
			fmt.Fprintln(&out, path, info.ModTime().UnixNano(), info.Size())
		}
	}
	return out.String()
}

// gossipAnnotations show the API which certificate the grant is wanted for.
func (a *agent) gossipAnnotations() map[string]string {
	if a.gossip == nil || a.gossip.Certificate() == nil {
		return nil
	}
	return map[string]string{gossip.CertificateAnnotation: base64.StdEncoding.EncodeToString(a.gossip.Certificate())}
}

func grantOf(n *v1.Node) []byte {
	raw, err := base64.StdEncoding.DecodeString(n.Annotations[gossip.GrantAnnotation])
	if err != nil {
		return nil
	}
	return raw
}

// tellGossip takes from the Node what the gossip says.
func (a *agent) tellGossip(n *v1.Node) {
	if a.gossip == nil {
		return
	}
	if raw := grantOf(n); len(raw) > 0 {
		if err := a.gossip.SetGrant(raw); err != nil {
			a.log.Debug("the Node's gossip grant is not for now", "error", err)
		}
	}
	if err := a.gossip.UpdateMeta(func(m *gossip.Meta) { m.Zone = n.Labels[v1.LabelTopologyZone] }); err != nil {
		a.log.Warn("other nodes are not told of the zone", "error", err)
	}
}
