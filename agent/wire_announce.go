package main

import (
	"log/slog"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/announce"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/service"
)

// newAnnouncer announces addresses that the cluster gives load balancers; nil without
// gossip, by which nodes know who is to.
func newAnnouncer(
	cfg *config.Config, services *service.Source, group *gossip.Group, counts *metrics.Agent, log *slog.Logger,
) *announce.Announcer {
	if group == nil {
		return nil
	}
	var known service.Announced
	return announce.New(announce.Config{
		Group: group,
		Claims: func() ([]announce.Claim, bool) {
			changed := known.Update(services.Tables())
			return claims(known.All()), changed
		},
		ClaimsChanged: services.Changed(),
		Skip:          func(name string) bool { return name == cfg.Bridge },
		Leaves:        func() bool { return leaves(cfg) },
		Count:         func(event string) { counts.Announcements.Inc(event) },
		Log:           log,
	})
}

// claims are announcements by address; of two for one the first counts.
func claims(all []*service.Announcement) (out []announce.Claim) {
	seen := map[netip.Addr]bool{}
	for _, a := range all {
		for _, addr := range a.Addrs {
			if !seen[addr] {
				seen[addr] = true
				out = append(out, announce.Claim{Addr: addr, Local: a.Local, Nodes: a.Nodes})
			}
		}
	}
	return out
}

// excluded has the Node's label heeded.
func excluded(a *announce.Announcer) listener {
	return func(n *corev1.Node) {
		_, yes := n.Labels[corev1.LabelNodeExcludeBalancers]
		a.Exclude(yes)
	}
}
