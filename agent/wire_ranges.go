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
// ranges behind those that it has, of the other address family or, for pods, of the same. Whatever else differs is
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
	next := *cfg
	next.ClusterCIDR, next.ServiceCIDR = widened(cfg.ClusterCIDR, told.Pods), widened(cfg.ServiceCIDR, told.Services)
	if more := addrs(strings.Split(told.DNS, ",")); followed(addrs(cfg.ClusterDNS), more) {
		next.ClusterDNS = strings.Split(told.DNS, ",")
	}
	if next.ClusterCIDR == cfg.ClusterCIDR && next.ServiceCIDR == cfg.ServiceCIDR &&
		len(next.ClusterDNS) == len(cfg.ClusterDNS) {
		return false
	}
	if err := next.Validate(); err != nil {
		log.Warn("the cluster's ranges are not used; those of the configuration hold", "err", err)
		return false
	}
	*cfg = next
	return true
}

// widened is what was told, if that is what there is and more.
func widened(have, told string) string {
	if followed(cidr.Parse(have), cidr.Parse(told)) {
		return told
	}
	return have
}

// followed tells whether told begins with all that there is, and goes on.
func followed[T netip.Addr | netip.Prefix](have, told []T) bool {
	return len(told) > len(have) && slices.Equal(told[:len(have)], have)
}

// errRanges ends the agent: what runs on its node goes on, and the agent that the service
// manager starts in its place takes the ranges from the checkpoint.
var errRanges = errors.New("the cluster has got further ranges; the agent starts again with them")

// rangesWatch ends the agent when its Node tells of further ranges.
type rangesWatch struct {
	cfg  *config.Config
	kept func() bool // the next agent will find the Node as it is now
	end  context.CancelCauseFunc
	log  *slog.Logger
}

// Heed takes a version of the Node.
func (w rangesWatch) Heed(n *corev1.Node) {
	next := *w.cfg
	next.ClusterDNS = slices.Clone(w.cfg.ClusterDNS)
	if w.kept() && adoptRanges(&next, n, w.log) {
		w.end(errRanges)
	}
}
