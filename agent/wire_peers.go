package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/fence"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/image"
	"github.com/shoal-project/shoal/agent/image/peer"
	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/network"
	"github.com/shoal-project/shoal/agent/runtime"
	"github.com/shoal-project/shoal/agent/withdraw"
)

// answers are to what other members of the gossip ask.
type answers struct {
	votes  *fence.Voter
	shares bool                       // layers will be shared, where members are verified
	layers atomic.Pointer[peer.Peers] // nil: layers are not shared
	// endpoints is nil where no proxy of ours leads traffic.
	endpoints atomic.Pointer[withdraw.Manager]
	tunnels   func(member string, question []byte) []byte
}

func (a *answers) answer(member string, role gossip.Role, question []byte) []byte {
	if len(question) > 0 && question[0] == peer.Magic {
		layers := a.layers.Load()
		if layers == nil || role != gossip.RoleAgent {
			return nil
		}
		return layers.Answer(member, question)
	}
	if len(question) > 0 && question[0] == withdraw.Magic {
		endpoints := a.endpoints.Load()
		if endpoints == nil || role != gossip.RoleAgent {
			return nil
		}
		return endpoints.Answer(question)
	}
	if len(question) > 0 && question[0] == network.Magic {
		if role != gossip.RoleAgent {
			return nil
		}
		return a.tunnels(member, question)
	}
	return a.votes.Answer(member, role == gossip.RoleCoordinator, question)
}

// sharesLayers tells whether this node is to share layers of images: not where the file says
// so, where another runtime has them, and without a port to get them at.
func sharesLayers(cfg *config.Config, server *api.Server, r *runtime.Runtime) bool {
	on := cfg.P2PImages == nil || *cfg.P2PImages
	return on && r != nil && server.Configured() && cfg.Port != 0
}

// newPeers has images' layers shared with other nodes; nil where they are not.
func newPeers(
	cfg *config.Config, server *api.Server, group *gossip.Group, r *runtime.Runtime, counts *metrics.Agent,
	log *slog.Logger,
) (*peer.Peers, error) {
	if r != nil {
		r.Images().SetReceived(func(n int) { counts.ImageBytes.Add(uint64(n), "registry") })
	}
	if group == nil || !group.Verified() || !sharesLayers(cfg, server, r) {
		return nil, nil
	}
	rate, err := resource.ParseQuantity(cfg.P2PImagesUploadRate)
	if err != nil {
		return nil, err
	}
	p := peer.New(peer.Config{
		Name:    cfg.NodeName,
		Port:    uint16(cfg.Port),
		Members: func() []peer.Member { return nodesOf(group.Members()) },
		Changed: group.Changed(),
		Ask:     group.Ask,
		Credentials: func() (*tls.Certificate, *x509.CertPool, error) {
			own, err := server.Credentials()
			if err != nil {
				return nil, nil, err
			}
			pair, err := tls.X509KeyPair(own.Cert, own.Key)
			if err != nil {
				return nil, nil, err
			}
			roots := x509.NewCertPool()
			if !roots.AppendCertsFromPEM(own.CA) {
				return nil, nil, errors.New("the kubeconfig has no CA")
			}
			return &pair, roots, nil
		},
		Store:    r.Images().ForPeers(),
		Rate:     rate.Value(),
		Received: func(n int) { counts.ImageBytes.Add(uint64(n), "node") },
		Sent:     func(n int) { counts.ImageBytesSent.Add(uint64(n)) },
		Log:      log,
	})
	r.Images().SetPeers(p)
	return p, nil
}

// pullProgress tells people how far a pull is; nil with another runtime.
func pullProgress(r *runtime.Runtime) func(name string) string {
	if r == nil {
		return nil
	}
	return func(name string) string {
		full, err := image.Normalize(name)
		if err != nil {
			return ""
		}
		for _, p := range r.Images().Pulling() {
			if p.Image == full {
				return p.Progress
			}
		}
		return ""
	}
}

// nodesOf are the members that share layers.
func nodesOf(members []gossip.Member) (out []peer.Member) {
	for _, m := range members {
		if m.Role == gossip.RoleAgent && m.Layers && (m.Local || m.State == gossip.StateAlive) && m.Addr.IsValid() {
			out = append(out, peer.Member{Name: m.Name, Addr: m.Addr.Addr(), Since: m.Since})
		}
	}
	return out
}
