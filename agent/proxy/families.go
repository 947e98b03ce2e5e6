package proxy

import (
	"slices"

	"github.com/shoal-project/shoal/cni/nft"
)

// families are those that Services have addresses of, the primary one first: each has
// a table of its own, of the same rules. A cluster of one family has one table (KEP-563).
func families(cfg *Config) (out []nft.Family) {
	for _, p := range slices.Concat(cfg.ServiceCIDRs, cfg.ClusterCIDRs, cfg.PodCIDRs) {
		if f := nft.FamilyOf(p.Addr()); !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	if len(out) == 0 {
		return []nft.Family{nft.V4}
	}
	return out
}

func newRenderer(cfg *Config, f nft.Family) renderer {
	return renderer{table: newTable(cfg.Table, f), clusterCIDRs: cfg.ClusterCIDRs, podCIDRs: cfg.PodCIDRs,
		nodeIPs: cfg.NodeIPs}
}

// renderers are those of the families.
func (p *Proxy) renderers() []*renderer {
	if p.second == nil {
		return []*renderer{&p.render}
	}
	return []*renderer{&p.render, p.second}
}

// nameOf is a family's in metrics, as kube-proxy has it.
func nameOf(f nft.Family) string {
	if f == nft.V6 {
		return "IPv6"
	}
	return "IPv4"
}
