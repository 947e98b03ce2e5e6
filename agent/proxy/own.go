package proxy

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/cni/nft"
)

// apiKey names the Service of the API, whose endpoints are the API servers.
var apiKey = service.Key{Namespace: "default", Name: "kubernetes"}

// own lists where parts of the cluster listen: whatever a Service or a host port
// asks for, it leads nowhere else.
func (p *Proxy) own(r *renderer, t *service.Tables) map[netip.AddrPort]bool {
	out := p.listen(r, p.cfg.Own)
	if api := t.Get(apiKey); api != nil {
		for i := range api.Ports {
			for _, b := range api.Ports[i].Cluster.Backends {
				if p.mayGuard(r, b.AddrPort) {
					out[b.AddrPort] = true
				}
			}
		}
	}
	// what listens on this node does so on its loopback, too, which host ports answer on
	for ap := range maps.Clone(out) {
		if slices.Contains(p.cfg.NodeIPs, ap.Addr()) {
			out[netip.AddrPortFrom(localhosts[r.Family], ap.Port())] = true
		}
	}
	return out
}

// listen is the set of what a list of the configuration has now, of a family.
func (p *Proxy) listen(r *renderer, list func() []netip.AddrPort) map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	if list == nil {
		return out
	}
	for _, ap := range list() {
		if p.mayGuard(r, ap) {
			out[ap] = true
		}
	}
	return out
}

// mayGuard leaves out addresses of Services: whoever could write the endpoints
// must not switch one off by it.
func (p *Proxy) mayGuard(r *renderer, ap netip.AddrPort) bool {
	return r.has(ap.Addr()) && !p.cfg.ServiceCIDRs.Contains(ap.Addr())
}

// changeGuarded adds how a set of listeners changes.
func (c *change) changeGuarded(s *nft.Set, had, want map[netip.AddrPort]bool) {
	addGuarded(c.Del, s, without(had, want))
	addGuarded(c.Add, s, without(want, had))
}

// without lists what is in one set and not in the other.
func without(list, others map[netip.AddrPort]bool) (out []netip.AddrPort) {
	for ap := range list {
		if !others[ap] {
			out = append(out, ap)
		}
	}
	return out
}

// tellRefused says once for each change of a Service which of its external
// addresses it does not get.
func (p *Proxy) tellRefused(before, now *service.Service) {
	if now == nil || len(now.Refused) == 0 || before != nil && slices.Equal(before.Refused, now.Refused) {
		return
	}
	p.log.Warn(
		"a Service has external addresses that are the cluster's own or its nodes', or too many; they are not served",
		"service", now.Key, "addresses", now.Refused)
}
