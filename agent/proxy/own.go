package proxy

import (
	"net/netip"
	"slices"

	"github.com/shoal-project/shoal/agent/service"
)

// apiKey names the Service of the API, whose endpoints are the API servers.
var apiKey = service.Key{Namespace: "default", Name: "kubernetes"}

// own lists where parts of the cluster listen: an external address of a Service
// may be a node's, but not with such a port.
func (p *Proxy) own(t *service.Tables) map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	add := func(ap netip.AddrPort) {
		// Whoever could write the endpoints must not switch off a Service by it.
		if ap.Addr().Is4() && !slices.ContainsFunc(p.cfg.ServiceCIDRs, func(c netip.Prefix) bool { return c.Contains(ap.Addr()) }) {
			out[ap] = true
		}
	}
	if p.cfg.Own != nil {
		for _, ap := range p.cfg.Own() {
			add(ap)
		}
	}
	if api := t.Get(apiKey); api != nil {
		for i := range api.Ports {
			for _, b := range api.Ports[i].Cluster.Backends {
				add(b.AddrPort)
			}
		}
	}
	return out
}

// setOwn adds to a change what leads from one list to the next.
func (c *change) setOwn(had, want map[netip.AddrPort]bool) {
	for ap := range had {
		if !want[ap] {
			c.delOwn = append(c.delOwn, ap)
		}
	}
	for ap := range want {
		if !had[ap] {
			c.addOwn = append(c.addOwn, ap)
		}
	}
}

// tellRefused says once for each change of a Service which of its external
// addresses it does not get.
func (p *Proxy) tellRefused(before, now *service.Service) {
	if now == nil || len(now.Refused) == 0 || before != nil && slices.Equal(before.Refused, now.Refused) {
		return
	}
	p.log.Warn("a Service has external addresses that are the cluster's own; they are not served", "service", now.Key, "addresses", now.Refused)
}
