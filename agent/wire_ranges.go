package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/cni/cidr"
)

// adoptRanges adds to the configuration what the cluster has got since it was written:
// ranges of the other address family behind those that it has. Whatever else differs is
// the administrator's. It tells whether something was added.
func adoptRanges(cfg *config.Config, n *corev1.Node, log *slog.Logger) bool {
	if n == nil {
		return false
	}
	told, err := gossip.RangesIn(n.Annotations)
	if err != nil {
		log.Warn("the cluster's ranges are not read; those of the configuration hold", "err", err)
		return false
	}
	pods, services := widened(cfg.ClusterCIDR, told.Pods), widened(cfg.ServiceCIDR, told.Services)
	dns := cfg.ClusterDNS
	if more := addrs(strings.Split(told.DNS, ",")); followed(addrs(dns), more) && more[0].Is4() != more[1].Is4() {
		dns = strings.Split(told.DNS, ",")
	}
	if pods == cfg.ClusterCIDR && services == cfg.ServiceCIDR && len(dns) == len(cfg.ClusterDNS) {
		return false
	}
	cfg.ClusterCIDR, cfg.ServiceCIDR, cfg.ClusterDNS = pods, services, dns
	return true
}

// widened is a range with the one of the other family that follows it in what was told.
func widened(have, told string) string {
	list := cidr.Parse(told)
	if followed(cidr.Parse(have), list) && list[0].Addr().Is4() != list[1].Addr().Is4() {
		return told
	}
	return have
}

// followed tells whether told are two, of which the first is all that there is.
func followed[T netip.Addr | netip.Prefix](have, told []T) bool {
	return len(have) == 1 && len(told) == 2 && have[0] == told[0]
}

// errRanges ends the agent: what runs on its node goes on, and the agent that the service
// manager starts in its place takes the ranges from the checkpoint.
var errRanges = errors.New("the cluster has got ranges of a second address family; the agent starts again with them")

// rangesWatch ends the agent when its Node tells of further ranges.
type rangesWatch struct {
	cfg *config.Config
	end context.CancelCauseFunc
	log *slog.Logger
}

// Heed takes a version of the Node.
func (w rangesWatch) Heed(n *corev1.Node) {
	next := *w.cfg
	next.ClusterDNS = slices.Clone(w.cfg.ClusterDNS)
	if adoptRanges(&next, n, w.log) {
		w.end(errRanges)
	}
}
