package service

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/shoal-project/shoal/cni/cidr"
)

// View is where the tables are seen from.
type View struct {
	Node string
	Zone string
	Down map[string]bool // nodes that gossip calls dead: their backends are avoided while there are others
	// Nodes are the addresses of nodes: no external addresses, but a balancer's
	// controller may have chosen some.
	Nodes map[netip.Addr]bool
	// Recorded: the API has not answered since the agent began, so that the
	// endpoints are those of an earlier time.
	Recorded bool
	Own
}

// Own is what the cluster has for itself on every node.
type Own struct {
	Ranges cidr.Prefixes // of Services and of pods: no Service has an external address in them
	DNS    []netip.Addr  // where the agent answers names itself: no Service leads traffic to them elsewhere
}

// has tells whether an address may not be a Service's external one: it is the
// cluster's own, or means something else on every machine.
func (o *Own) has(a netip.Addr) bool {
	return !a.Unmap().IsGlobalUnicast() || slices.Contains(o.DNS, a) || o.Ranges.Contains(a)
}

// Input is the state that Build reads; it changes nothing of it.
type Input struct {
	Services []*corev1.Service
	Slices   []*discoveryv1.EndpointSlice
	View     View
}

// Build makes the tables of a whole cluster.
func Build(in Input) *Tables {
	byService := map[Key][]*discoveryv1.EndpointSlice{}
	for _, s := range in.Slices {
		if k, ok := sliceKey(s); ok {
			byService[k] = append(byService[k], s)
		}
	}
	all := make([]*Service, 0, len(in.Services))
	for _, s := range in.Services {
		all = append(all, BuildOne(s, byService[Key{s.Namespace, s.Name}], in.View))
	}
	return NewTables(all...)
}

// sliceKey names the Service that a slice belongs to (EPS-15).
func sliceKey(s *discoveryv1.EndpointSlice) (Key, bool) {
	name := s.Labels[discoveryv1.LabelServiceName]
	return Key{s.Namespace, name}, name != ""
}

// labelProxyName hands a Service to another proxy
// (https://kubernetes.io/docs/reference/labels-annotations-taints/).
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// LabelGateway marks the Services by which Gateways and Ingresses are reached: while there
// is one, nodes run a proxy for them. The coordinator writes it (package gateway there).
const LabelGateway = "shoal-project.io/gateway"

// BuildOne makes one Service's value from it and its slices.
func BuildOne(svc *corev1.Service, slcs []*discoveryv1.EndpointSlice, view View) *Service {
	out := &Service{Key: Key{svc.Namespace, svc.Name}}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		out.ExternalName = svc.Spec.ExternalName
		return out
	}
	_, out.NotProxied = svc.Labels[labelProxyName]
	_, out.Gateway = svc.Labels[LabelGateway]
	out.Headless = svc.Spec.ClusterIP == corev1.ClusterIPNone
	if !out.Headless {
		out.ClusterIPs = clusterIPs(svc)
		out.ExternalIPs = out.claim(svc.Spec.ExternalIPs, func(a netip.Addr) bool { return view.has(a) || view.Nodes[a] })
		out.BalancerIPs = out.claim(balancerIPs(svc), view.has)
	}
	// The agent's own DNS answers there, so that nobody takes it over.
	if slices.ContainsFunc(out.ClusterIPs, func(a netip.Addr) bool { return slices.Contains(view.DNS, a) }) {
		out.NotProxied = true
	}
	out.AnyState = svc.Spec.PublishNotReadyAddresses
	out.SourceRanges = sourceRanges(svc)
	out.Affinity = affinity(svc)
	if !out.Headless {
		slcs = slices.DeleteFunc(slices.Clone(slcs), forNames)
	}
	eps := endpoints(slcs, view)
	out.Endpoints = records(eps, view)
	out.Announcement = announcement(svc, out.BalancerIPs, eps)
	for i := range svc.Spec.Ports {
		out.Ports = append(out.Ports, buildPort(svc, &svc.Spec.Ports[i], eps, view))
	}
	if svc.Spec.HealthCheckNodePort != 0 {
		out.HealthPort = uint16(svc.Spec.HealthCheckNodePort)
		out.LocalReady = countLocal(eps, view)
	}
	return out
}

// forNames tells of a slice that is for DNS alone: no proxy leads traffic to it,
// whatever its Service is.
func forNames(s *discoveryv1.EndpointSlice) bool {
	_, ok := s.Labels[corev1.IsHeadlessService]
	return ok
}

// maxExternal bounds a Service's addresses of a kind: each counts with every
// port, and whoever writes both would fill all nodes' memory.
const maxExternal = 256

// claim returns the external addresses that the Service may have, noting the
// others; of too many, the first that is left out.
func (s *Service) claim(list []string, taken func(netip.Addr) bool) []netip.Addr {
	if len(list) > maxExternal {
		s.Refused = append(s.Refused, parseAddrs(list[maxExternal:maxExternal+1])...)
		list = list[:maxExternal]
	}
	var out []netip.Addr
	for _, a := range parseAddrs(list) {
		switch {
		case slices.Contains(s.ClusterIPs, a): // it has it already
		case taken(a):
			s.Refused = append(s.Refused, a)
		default:
			out = append(out, a)
		}
	}
	return out
}

func clusterIPs(svc *corev1.Service) []netip.Addr {
	all := svc.Spec.ClusterIPs
	if len(all) == 0 {
		all = []string{svc.Spec.ClusterIP}
	}
	return parseAddrs(all)
}

func balancerIPs(svc *corev1.Service) []string {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	var all []string
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.IP != "" && (in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP) {
			all = append(all, in.IP)
		}
	}
	return all
}

func parseAddrs(all []string) []netip.Addr {
	var out []netip.Addr
	for _, s := range all {
		if a, err := netip.ParseAddr(s); err == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// sourceRanges keeps a range that cannot be read as one that nobody is in: without
// any, everybody may use the Service. So may they where all of one family may, and
// nothing is said of the other.
func sourceRanges(svc *corev1.Service) cidr.Prefixes {
	var out cidr.Prefixes
	for _, s := range svc.Spec.LoadBalancerSourceRanges {
		p, _ := netip.ParsePrefix(strings.TrimSpace(s)) // the API trims it, too
		out = append(out, p.Masked())
	}
	all := slices.IndexFunc(out, func(p netip.Prefix) bool { return p.Bits() == 0 })
	if all >= 0 && !slices.ContainsFunc(out, func(p netip.Prefix) bool {
		return !p.IsValid() || p.Addr().Is4() != out[all].Addr().Is4()
	}) {
		return nil
	}
	return out
}

func affinity(svc *corev1.Service) time.Duration {
	if svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	return time.Duration(seconds) * time.Second
}

// endpoint is one address of one slice, before any choice.
type endpoint struct {
	Endpoint
	node               string
	ready, terminating bool // terminating: serving while it ends
	ending             bool // serving or not
	down               bool
	forNodes, forZones []string
}

// endpoints joins the slices; an address with the same ports in several of them
// counts once, with its best condition (EPS-22).
func endpoints(slcs []*discoveryv1.EndpointSlice, view View) []endpoint {
	var out []endpoint
	for _, s := range slcs {
		if s.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		ports := slicePorts(s)
		for i := range s.Endpoints {
			e := newEndpoint(&s.Endpoints[i], view)
			e.Ports = ports
			for _, a := range parseAddrs(s.Endpoints[i].Addresses) { // all of them, SVC-10
				// The API refuses these; what got past it must not open the
				// node's own loopback or link to everybody.
				if !a.Unmap().IsGlobalUnicast() {
					continue
				}
				e.Addr = a
				out = append(out, e)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b endpoint) int {
		return cmp.Or(a.Addr.Compare(b.Addr), slices.CompareFunc(a.Ports, b.Ports, comparePorts),
			cmp.Compare(b.rank(), a.rank()))
	})
	out = slices.CompactFunc(out, func(a, b endpoint) bool { return a.Addr == b.Addr && slices.Equal(a.Ports, b.Ports) })
	if view.Recorded {
		trustRecorded(out)
	}
	return out
}

// trustRecorded takes endpoints that a record calls not ready for ready where it
// knows no better ones: they may have become ready just before the power went, or
// since, and nobody is there to say so. Traffic to one that is not is refused, as
// it would be without any.
func trustRecorded(eps []endpoint) {
	if slices.ContainsFunc(eps, func(e endpoint) bool { return e.ready || e.terminating }) {
		return
	}
	for i := range eps {
		eps[i].ready = !eps[i].ending
	}
}

func comparePorts(a, b EndpointPort) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Number, b.Number))
}

func (e *endpoint) rank() int {
	switch {
	case e.ready:
		return 2
	case e.terminating:
		return 1
	}
	return 0
}

func newEndpoint(e *discoveryv1.Endpoint, view View) endpoint {
	out := endpoint{}
	if e.NodeName != nil {
		out.node = *e.NodeName
	}
	if e.Hostname != nil {
		out.Hostname = *e.Hostname
	}
	out.down = view.Down[out.node]
	out.ready = e.Conditions.Ready == nil || *e.Conditions.Ready
	serving := e.Conditions.Serving == nil || *e.Conditions.Serving // discovery/v1: nil is true
	out.ending = e.Conditions.Terminating != nil && *e.Conditions.Terminating
	out.terminating = serving && out.ending
	if h := e.Hints; h != nil {
		for _, n := range h.ForNodes {
			out.forNodes = append(out.forNodes, n.Name)
		}
		for _, z := range h.ForZones {
			out.forZones = append(out.forZones, z.Name)
		}
	}
	return out
}

func slicePorts(s *discoveryv1.EndpointSlice) []EndpointPort {
	var out []EndpointPort
	for _, p := range s.Ports {
		if p.Port == nil {
			continue
		}
		ep := EndpointPort{Protocol: string(corev1.ProtocolTCP), Number: uint16(*p.Port)}
		if p.Name != nil {
			ep.Name = *p.Name
		}
		if p.Protocol != nil {
			ep.Protocol = string(*p.Protocol)
		}
		out = append(out, ep)
	}
	slices.SortFunc(out, comparePorts)
	return out
}

// records are the endpoints that DNS may name: the ready ones (DNS-17).
func records(eps []endpoint, view View) []Endpoint {
	var out []Endpoint
	for eps := range perFamily(eps) {
		for _, e := range avoidDown(filter(eps, func(e *endpoint) bool { return e.ready })) {
			out = append(out, e.Endpoint)
		}
	}
	return out
}

// countLocal counts this node's endpoints, one with addresses of both families once.
func countLocal(eps []endpoint, view View) (most int) {
	for eps := range perFamily(eps) {
		n, last := 0, netip.Addr{}
		for i := range eps {
			if e := &eps[i]; e.ready && e.node == view.Node && e.Addr != last {
				n, last = n+1, e.Addr
			}
		}
		most = max(most, n)
	}
	return most
}

func filter(eps []endpoint, keep func(*endpoint) bool) []endpoint {
	var out []endpoint
	for i := range eps {
		if keep(&eps[i]) {
			out = append(out, eps[i])
		}
	}
	return out
}

// avoidDown removes backends of dead nodes, unless no other is left.
func avoidDown(eps []endpoint) []endpoint {
	if up := filter(eps, func(e *endpoint) bool { return !e.down }); len(up) > 0 {
		return up
	}
	return eps
}

func buildPort(svc *corev1.Service, p *corev1.ServicePort, eps []endpoint, view View) Port {
	out := Port{Name: p.Name, Protocol: string(p.Protocol), Number: uint16(p.Port), NodePort: uint16(p.NodePort)}
	if out.Protocol == "" {
		out.Protocol = string(corev1.ProtocolTCP)
	}
	pick := picker{view: view, name: out.Name, protocol: out.Protocol}
	pick.eps = filter(eps, func(e *endpoint) bool { return pick.port(e) != 0 })
	out.Cluster = pick.route((*picker).cluster)
	switch p.Protocol {
	case corev1.ProtocolUDP:
		out.Lasting = pick.lasting(out.Cluster, (*endpoint).serves)
	case corev1.ProtocolSCTP:
		out.Lasting = pick.lasting(out.Cluster, func(*endpoint) bool { return true })
	}
	out.Internal, out.External = out.Cluster, out.Cluster
	if t := svc.Spec.InternalTrafficPolicy; t != nil && *t == corev1.ServiceInternalTrafficPolicyLocal {
		out.Internal = pick.route((*picker).local)
	}
	if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		out.External = pick.route((*picker).local)
		out.External.KeepIP = true
	}
	return out
}

// picker chooses one port's backends.
type picker struct {
	view           View
	name, protocol string
	eps            []endpoint // those that have the port
}

func (p *picker) port(e *endpoint) uint16 {
	for _, q := range e.Ports {
		if q.Name == p.name && q.Protocol == p.protocol {
			return q.Number
		}
	}
	return 0
}

// route joins what is chosen among the endpoints of each family: who asks by one has
// nothing of the other's, as pods have it that began before the cluster had both.
func (p *picker) route(choose func(*picker) Route) (out Route) {
	for eps := range perFamily(p.eps) {
		one := *p
		one.eps = eps
		r := choose(&one)
		out.Last = len(r.Backends) == 0 && out.Last || r.Last && (out.Last || len(out.Backends) == 0)
		out.Backends, out.Drop = append(out.Backends, r.Backends...), out.Drop || r.Drop
	}
	return out
}

// perFamily goes through the endpoints of each family; they are sorted by address.
func perFamily(eps []endpoint) iter.Seq[[]endpoint] {
	n := sort.Search(len(eps), func(i int) bool { return !eps[i].Addr.Is4() })
	return func(yield func([]endpoint) bool) {
		_ = (n == 0 || yield(eps[:n:n])) && n < len(eps) && yield(eps[n:])
	}
}

// cluster takes ready endpoints of any node, those hinted for here if every
// one has a hint; when none is ready, those that still serve while they end.
func (p *picker) cluster() Route {
	ready := avoidDown(filter(p.eps, func(e *endpoint) bool { return e.ready }))
	if len(ready) == 0 {
		ready = avoidDown(filter(p.eps, func(e *endpoint) bool { return e.terminating }))
	} else {
		ready = p.hinted(ready)
	}
	return Route{Backends: p.backends(ready), Last: last(ready)}
}

// last tells whether what was chosen ends, or its node does: there was nothing better.
func last(chosen []endpoint) bool {
	return len(chosen) > 0 && (chosen[0].down || !chosen[0].ready)
}

// lasting are the endpoints to which flows may go on, beside those that are chosen. As for
// kube-proxy a change of policies or hints moves no flow.
func (p *picker) lasting(chosen Route, may func(*endpoint) bool) (out []netip.AddrPort) {
	for _, b := range p.backends(filter(p.eps, may)) {
		if !chosen.Has(b.AddrPort) {
			out = append(out, b.AddrPort)
		}
	}
	return out
}

// serves holds for those that serve, whether they end or are hinted for others; an
// endpoint of a dead node is left.
func (e *endpoint) serves() bool { return (e.ready || e.terminating) && !e.down }

// hinted applies topology hints: the same node first, then the same zone
// (KEP-4444, KEP-2433). Endpoints without a hint disable them.
func (p *picker) hinted(eps []endpoint) []endpoint {
	for _, h := range []struct {
		here string
		of   func(*endpoint) []string
	}{
		{p.view.Node, func(e *endpoint) []string { return e.forNodes }},
		{p.view.Zone, func(e *endpoint) []string { return e.forZones }},
	} {
		if slices.ContainsFunc(eps, func(e endpoint) bool { return len(h.of(&e)) == 0 }) {
			continue
		}
		if near := filter(eps, func(e *endpoint) bool { return slices.Contains(h.of(e), h.here) }); len(near) > 0 {
			return near
		}
	}
	return eps
}

// local takes this node's endpoints only. Where another node has some, traffic
// without a local one is dropped, not refused: it was to be sent elsewhere.
func (p *picker) local() Route {
	here := filter(p.eps, func(e *endpoint) bool { return e.node == p.view.Node })
	chosen := filter(here, func(e *endpoint) bool { return e.ready })
	if len(chosen) == 0 {
		chosen = filter(here, func(e *endpoint) bool { return e.terminating })
	}
	usable := slices.ContainsFunc(p.eps, func(e endpoint) bool { return e.ready || e.terminating })
	return Route{Backends: p.backends(chosen), Drop: usable, Last: last(chosen)}
}

func (p *picker) backends(eps []endpoint) []Backend {
	out := make([]Backend, 0, len(eps))
	for i := range eps {
		e := &eps[i]
		out = append(out, Backend{netip.AddrPortFrom(e.Addr, p.port(e)), e.node != "" && e.node == p.view.Node})
	}
	slices.SortFunc(out, func(a, b Backend) int { return a.AddrPort.Compare(b.AddrPort) })
	return slices.CompactFunc(out, func(a, b Backend) bool { return a.AddrPort == b.AddrPort })
}
