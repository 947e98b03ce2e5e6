package gateway

import (
	"cmp"
	"encoding/pem"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

func hasCertificate(text string) bool {
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return false
		}
		if block.Type == "CERTIFICATE" {
			return true
		}
	}
}

// route is what routes of all kinds have in common.
type route struct {
	kind      string
	obj       metav1.Object
	parents   []gatewayv1.ParentReference
	hostnames []gatewayv1.Hostname
	status    *gatewayv1.RouteStatus
	// resolved is what became of its references; accepted: nil unless something of it is
	// not supported.
	resolved verdict
	refused  *verdict
	// attach gives a listener the route, for names that both have.
	attach func(l *listener, hosts []string)
}

// key is what the route is called in the configuration, and among what may be refused.
func (r *route) key() string { return r.kind + "/" + nameOf(r.obj).String() }

// routes attaches all, the oldest first.
func (c *compiler) routes() {
	for _, r := range byAge(c.HTTPRoutes) {
		obj := r.DeepCopy()
		if !c.concerns(r.Namespace, r.Spec.ParentRefs, r.Status.Parents) {
			continue
		}
		b := refs{c: c, kind: "HTTPRoute", namespace: r.Namespace, resolved: yes(gatewayv1.RouteReasonResolvedRefs)}
		rules := b.httpRules(r.Spec.Rules)
		c.attach(&route{kind: "HTTPRoute", obj: obj, parents: obj.Spec.ParentRefs, hostnames: obj.Spec.Hostnames,
			status:   &obj.Status.RouteStatus,
			resolved: b.resolved, refused: b.refused, attach: func(l *listener, hosts []string) {
				l.feed.Routes = append(l.feed.Routes, gatewayfeed.Route{Name: "HTTPRoute/" + nameOf(obj).String(),
					Hostnames: hosts, Rules: b.shown(rules, l.gw)})
			}})
		c.plan.HTTP = append(c.plan.HTTP, obj)
	}
	for _, r := range byAge(c.GRPCRoutes) {
		obj := r.DeepCopy()
		if !c.concerns(r.Namespace, r.Spec.ParentRefs, r.Status.Parents) {
			continue
		}
		b := refs{c: c, kind: "GRPCRoute", namespace: r.Namespace, resolved: yes(gatewayv1.RouteReasonResolvedRefs)}
		rules := b.grpcRules(r.Spec.Rules)
		c.attach(&route{kind: "GRPCRoute", obj: obj, parents: obj.Spec.ParentRefs, hostnames: obj.Spec.Hostnames,
			status:   &obj.Status.RouteStatus,
			resolved: b.resolved, refused: b.refused, attach: func(l *listener, hosts []string) {
				l.feed.Routes = append(l.feed.Routes, gatewayfeed.Route{Name: "GRPCRoute/" + nameOf(obj).String(),
					Hostnames: hosts, GRPC: true, Rules: b.shown(rules, l.gw)})
			}})
		c.plan.GRPC = append(c.plan.GRPC, obj)
	}
	for _, r := range byAge(c.TLSRoutes) {
		obj := r.DeepCopy()
		var lists [][]gatewayv1.BackendRef
		for _, rule := range r.Spec.Rules {
			lists = append(lists, rule.BackendRefs)
		}
		if c.streams("TLSRoute", obj, obj.Spec.ParentRefs, obj.Spec.Hostnames, &obj.Status.RouteStatus, lists) {
			c.plan.TLS = append(c.plan.TLS, obj)
		}
	}
	for _, r := range byAge(c.TCPRoutes) {
		obj := r.DeepCopy()
		var lists [][]gatewayv1.BackendRef
		for _, rule := range r.Spec.Rules {
			lists = append(lists, rule.BackendRefs)
		}
		if c.streams("TCPRoute", obj, obj.Spec.ParentRefs, nil, &obj.Status.RouteStatus, lists) {
			c.plan.TCP = append(c.plan.TCP, obj)
		}
	}
	for _, r := range byAge(c.UDPRoutes) {
		obj := r.DeepCopy()
		var lists [][]gatewayv1.BackendRef
		for _, rule := range r.Spec.Rules {
			lists = append(lists, rule.BackendRefs)
		}
		if c.streams("UDPRoute", obj, obj.Spec.ParentRefs, nil, &obj.Status.RouteStatus, lists) {
			c.plan.UDP = append(c.plan.UDP, obj)
		}
	}
}

// streams attaches a route of connections or datagrams.
func (c *compiler) streams(kind string, obj metav1.Object, parents []gatewayv1.ParentReference,
	hostnames []gatewayv1.Hostname,
	status *gatewayv1.RouteStatus, lists [][]gatewayv1.BackendRef) bool {
	if !c.concerns(obj.GetNamespace(), parents, status.Parents) {
		return false
	}
	b := refs{c: c, kind: kind, namespace: obj.GetNamespace(), resolved: yes(gatewayv1.RouteReasonResolvedRefs)}
	var backends []gatewayfeed.Backend
	for i, list := range lists {
		for _, ref := range list {
			got := b.backend(ref)
			got.TLS, got.Protocol = nil, ""
			if i == 0 { // there is nothing that tells the rules of such a route apart
				backends = append(backends, got)
			}
		}
	}
	c.attach(&route{kind: kind, obj: obj, parents: parents, hostnames: hostnames, status: status, resolved: b.resolved,
		attach: func(l *listener, hosts []string) {
			l.feed.Streams = append(l.feed.Streams, gatewayfeed.Stream{Name: kind + "/" + nameOf(obj).String(),
				Hostnames: hosts, Backends: backends})
		}})
	return true
}

// parent finds what a reference names.
func (c *compiler) parent(namespace string, p *gatewayv1.ParentReference) (list []*listener, found bool) {
	if deref(p.Group, gatewayv1.GroupName) != gatewayv1.GroupName {
		return nil, false
	}
	name := types.NamespacedName{Namespace: string(deref(p.Namespace, gatewayv1.Namespace(namespace))),
		Name: string(p.Name)}
	switch deref(p.Kind, "Gateway") {
	case "Gateway":
		if g := c.gateways[name]; g != nil {
			// Listeners of sets are reached by these only.
			return slices.DeleteFunc(slices.Clone(g.listeners), func(l *listener) bool { return l.set != nil }), true
		}
	case "ListenerSet":
		if s := c.sets[name]; s != nil {
			return s.listeners, true
		}
	}
	return nil, false
}

// concerns tells whether a route has a parent of ours, or a status that we wrote.
func (c *compiler) concerns(namespace string, parents []gatewayv1.ParentReference,
	written []gatewayv1.RouteParentStatus) bool {
	return slices.ContainsFunc(parents, func(p gatewayv1.ParentReference) bool {
		_, found := c.parent(namespace, &p)
		return found
	}) || slices.ContainsFunc(written,
		func(s gatewayv1.RouteParentStatus) bool { return s.ControllerName == Controller })
}

// attach gives a route to the listeners of its parents, and writes what became of it.
func (c *compiler) attach(r *route) {
	c.routeOrder = append(c.routeOrder, r.key())
	old := r.status.Parents
	r.status.Parents = slices.DeleteFunc(slices.Clone(old),
		func(s gatewayv1.RouteParentStatus) bool { return s.ControllerName == Controller })
	for _, p := range r.parents {
		list, found := c.parent(r.obj.GetNamespace(), &p)
		if !found {
			continue
		}
		accepted := c.accept(r, &p, list)
		st := gatewayv1.RouteParentStatus{ParentRef: p, ControllerName: Controller}
		for _, o := range old {
			if o.ControllerName == Controller && sameParent(o.ParentRef, p) {
				st.Conditions = slices.Clone(o.Conditions)
			}
		}
		c.set(&st.Conditions, r.obj.GetGeneration(), string(gatewayv1.RouteConditionAccepted), accepted)
		c.set(&st.Conditions, r.obj.GetGeneration(), string(gatewayv1.RouteConditionResolvedRefs), r.resolved)
		r.status.Parents = append(r.status.Parents, st)
	}
	if r.status.Parents == nil {
		r.status.Parents = []gatewayv1.RouteParentStatus{}
	}
}

func sameParent(a, b gatewayv1.ParentReference) bool {
	return deref(a.Group, gatewayv1.GroupName) == deref(b.Group, gatewayv1.GroupName) &&
		deref(a.Kind, "Gateway") == deref(b.Kind, "Gateway") && deref(a.Namespace, "") == deref(b.Namespace, "") &&
		a.Name == b.Name && deref(a.SectionName, "") == deref(b.SectionName, "") && deref(a.Port, 0) == deref(b.Port, 0)
}

func (c *compiler) accept(r *route, p *gatewayv1.ParentReference, list []*listener) verdict {
	if r.refused != nil {
		return *r.refused
	}
	if c.refused[r.key()] {
		return no(ReasonLimitExceeded, limitMessage)
	}
	named := slices.DeleteFunc(slices.Clone(list), func(l *listener) bool {
		return p.SectionName != nil && *p.SectionName != l.Name || p.Port != nil && *p.Port != l.Port
	})
	if len(named) == 0 {
		return no(gatewayv1.RouteReasonNoMatchingParent, "the parent has no such listener")
	}
	out := no(gatewayv1.RouteReasonNotAllowedByListeners, "no listener takes the route")
	for _, l := range named {
		if !l.takes(r, c) {
			continue
		}
		hosts, ok := intersect(l.feed.Hostname, r.hostnames)
		if !ok {
			if !out.ok {
				out = no(gatewayv1.RouteReasonNoMatchingListenerHostname,
					"no listener has one of the route's host names")
			}
			continue
		}
		out = yes(gatewayv1.RouteReasonAccepted)
		l.attached++
		r.attach(l, hosts)
	}
	return out
}

// takes tells whether a route may attach to a listener.
func (l *listener) takes(r *route, c *compiler) bool {
	if !l.usable || !slices.ContainsFunc(l.kinds,
		func(k gatewayv1.RouteGroupKind) bool { return string(k.Kind) == r.kind }) {
		return false
	}
	from, selector := gatewayv1.NamespacesFromSame, (*metav1.LabelSelector)(nil)
	if a := l.AllowedRoutes; a != nil && a.Namespaces != nil {
		from, selector = deref(a.Namespaces.From, gatewayv1.NamespacesFromSame), a.Namespaces.Selector
	}
	return c.admits(from, selector, l.namespace, r.obj.GetNamespace())
}

// intersect are the names that a listener and a route both have; none, and true: all of
// the listener's.
func intersect(listener string, route []gatewayv1.Hostname) (out []string, ok bool) {
	if len(route) == 0 {
		if listener != "" {
			return []string{listener}, true
		}
		return nil, true
	}
	for _, h := range route {
		name := strings.ToLower(string(h))
		switch {
		case listener == "" || listener == name || covers(listener, name):
			out = append(out, name)
		case covers(name, listener):
			out = append(out, listener)
		}
	}
	return out, len(out) > 0
}

// covers tells whether all that b stands for is below the wildcard a.
func covers(a, b string) bool {
	suffix, wild := strings.CutPrefix(a, "*")
	return wild && strings.HasSuffix(strings.TrimPrefix(b, "*"), suffix) && len(b) >= len(a) &&
		(strings.HasPrefix(b, "*") || len(b) > len(suffix))
}

// refs resolves a route's references.
type refs struct {
	c         *compiler
	kind      string
	namespace string
	resolved  verdict
	refused   *verdict
}

func (b *refs) fail(reason gatewayv1.RouteConditionReason, format string, args ...any) {
	if b.resolved.ok {
		b.resolved = no(reason, fmt.Sprintf(format, args...))
	}
}

func (b *refs) object(ref gatewayv1.BackendObjectReference) (out gatewayfeed.Backend) {
	if deref(ref.Group, "") != "" || deref(ref.Kind, "Service") != "Service" {
		b.fail(gatewayv1.RouteReasonInvalidKind, "a backend is a Service, not %s", deref(ref.Kind, ""))
		return out
	}
	to := types.NamespacedName{Namespace: string(deref(ref.Namespace, gatewayv1.Namespace(b.namespace))),
		Name: string(ref.Name)}
	if !b.c.permitted(reference{gatewayv1.GroupName, b.kind, b.namespace, "", "Service", to.Namespace, to.Name}) {
		b.fail(gatewayv1.RouteReasonRefNotPermitted, "no ReferenceGrant permits Service %s", to)
		return out
	}
	svc := b.c.Service(to)
	if svc == nil || svc.Spec.Type == corev1.ServiceTypeExternalName || leadsToProxies(svc) {
		// An external name could be any host's, the node's own ones too
		// (GHSA "ExternalName", Gateway API: implementations SHOULD NOT support it).
		b.fail(gatewayv1.RouteReasonBackendNotFound, "there is no Service %s with endpoints of its own", to)
		return out
	}
	protocol := corev1.ProtocolTCP
	if b.kind == "UDPRoute" {
		protocol = corev1.ProtocolUDP
	}
	i := slices.IndexFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Port == deref(ref.Port, 0) && cmp.Or(p.Protocol, corev1.ProtocolTCP) == protocol
	})
	if i < 0 {
		b.fail(gatewayv1.RouteReasonBackendNotFound, "Service %s has no port %d", to, deref(ref.Port, 0))
		return out
	}
	out = gatewayfeed.Backend{Namespace: to.Namespace, Service: to.Name, Port: uint16(svc.Spec.Ports[i].Port)}
	if deref(svc.Spec.Ports[i].AppProtocol, "") == "kubernetes.io/h2c" || b.kind == "GRPCRoute" {
		out.Protocol = gatewayfeed.H2C
	}
	if b.kind == "HTTPRoute" || b.kind == "GRPCRoute" {
		policy := b.c.policies.of(to, svc.Spec.Ports[i].Name)
		switch {
		case policy == nil:
		case policy.feed == nil:
			out.Filters.Fail = true // who is to be verified, and cannot be, is not asked
		default:
			out.TLS = policy.feed
		}
	}
	return out
}

func (b *refs) backend(ref gatewayv1.BackendRef) gatewayfeed.Backend {
	out := b.object(ref.BackendObjectReference)
	out.Weight = uint32(max(deref(ref.Weight, 1), 0))
	return out
}

// shown gives rules' backends the certificate that a gateway shows, and notes the policies
// that are its.
func (b *refs) shown(rules []gatewayfeed.Rule, g *gateway) []gatewayfeed.Rule {
	out := slices.Clone(rules)
	for i := range out {
		out[i].Backends = slices.Clone(out[i].Backends)
		for j := range out[i].Backends {
			back := &out[i].Backends[j]
			b.c.policies.used(types.NamespacedName{Namespace: back.Namespace, Name: back.Service}, g)
			if back.TLS != nil && g.backend != "" {
				t := *back.TLS
				t.Certificate = g.backend
				back.TLS = &t
			}
		}
	}
	return out
}

func duration(d *gatewayv1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	out, err := time.ParseDuration(string(*d)) // a part of what Go reads (GEP-2257)
	if err != nil || out < 0 {
		return 0
	}
	return out
}

func (b *refs) refuse(reason gatewayv1.RouteConditionReason, format string, args ...any) {
	if b.refused == nil {
		v := no(reason, fmt.Sprintf(format, args...))
		b.refused = &v
	}
}

func (b *refs) regex(expr string) {
	if _, err := gatewayfeed.Whole(expr); err != nil {
		b.refuse(gatewayv1.RouteReasonUnsupportedValue, "%v", err)
	}
}

func (b *refs) httpRules(rules []gatewayv1.HTTPRouteRule) (out []gatewayfeed.Rule) {
	for _, rule := range rules {
		r := gatewayfeed.Rule{Filters: b.filters(rule.Filters)}
		for _, m := range rule.Matches {
			r.Matches = append(r.Matches, b.httpMatch(&m))
		}
		if t := rule.Timeouts; t != nil {
			r.RequestTimeout, r.BackendTimeout = duration(t.Request), duration(t.BackendRequest)
		}
		if rt := rule.Retry; rt != nil {
			r.Retry = &gatewayfeed.Retry{Attempts: min(deref(rt.Attempts, 1), 10), Backoff: min(duration(rt.Backoff),
				10*time.Second)}
			for _, code := range rt.Codes {
				r.Retry.Codes = append(r.Retry.Codes, int(code))
			}
		}
		if rule.SessionPersistence != nil {
			b.refuse(gatewayv1.RouteReasonUnsupportedValue, "sessionPersistence is not supported")
		}
		for _, ref := range rule.BackendRefs {
			back := b.backend(ref.BackendRef)
			f := b.filters(ref.Filters)
			f.Fail = f.Fail || back.Filters.Fail
			back.Filters = f
			r.Backends = append(r.Backends, back)
		}
		out = append(out, r)
	}
	return out
}

func (b *refs) httpMatch(m *gatewayv1.HTTPRouteMatch) (out gatewayfeed.Match) {
	if p := m.Path; p != nil {
		out.Path = deref(p.Value, "/")
		switch deref(p.Type, gatewayv1.PathMatchPathPrefix) {
		case gatewayv1.PathMatchExact:
		case gatewayv1.PathMatchRegularExpression:
			out.PathKind = gatewayfeed.Regex
			b.regex(out.Path)
		default:
			out.PathKind = gatewayfeed.Prefix
		}
	}
	if m.Method != nil {
		out.Method = string(*m.Method)
	}
	for _, h := range m.Headers {
		v := gatewayfeed.Value{Name: string(h.Name), Value: h.Value}
		if deref(h.Type, gatewayv1.HeaderMatchExact) == gatewayv1.HeaderMatchRegularExpression {
			v.Kind = gatewayfeed.Regex
			b.regex(h.Value)
		}
		if !slices.ContainsFunc(out.Headers, func(o gatewayfeed.Value) bool {
			return strings.EqualFold(o.Name,
				v.Name)
		}) {
			out.Headers = append(out.Headers, v) // only the first of a name counts
		}
	}
	for _, q := range m.QueryParams {
		v := gatewayfeed.Value{Name: string(q.Name), Value: q.Value}
		if deref(q.Type, gatewayv1.QueryParamMatchExact) == gatewayv1.QueryParamMatchRegularExpression {
			v.Kind = gatewayfeed.Regex
			b.regex(q.Value)
		}
		if !slices.ContainsFunc(out.Query, func(o gatewayfeed.Value) bool { return o.Name == v.Name }) {
			out.Query = append(out.Query, v)
		}
	}
	return out
}

func headersOf(f *gatewayv1.HTTPHeaderFilter) *gatewayfeed.Headers {
	out := &gatewayfeed.Headers{Remove: f.Remove}
	for _, h := range f.Set {
		out.Set = append(out.Set, gatewayfeed.Header{Name: string(h.Name), Value: h.Value})
	}
	for _, h := range f.Add {
		out.Add = append(out.Add, gatewayfeed.Header{Name: string(h.Name), Value: h.Value})
	}
	return out
}

func pathOf(p *gatewayv1.HTTPPathModifier) *gatewayfeed.PathChange {
	switch {
	case p == nil:
		return nil
	case p.Type == gatewayv1.PrefixMatchHTTPPathModifier:
		return &gatewayfeed.PathChange{Prefix: true, To: deref(p.ReplacePrefixMatch, "/")}
	}
	return &gatewayfeed.PathChange{To: deref(p.ReplaceFullPath, "/")}
}

func (b *refs) filters(list []gatewayv1.HTTPRouteFilter) (out gatewayfeed.Filters) {
	for _, f := range list {
		switch {
		case f.Type == gatewayv1.HTTPRouteFilterRequestHeaderModifier && f.RequestHeaderModifier != nil:
			out.Request = headersOf(f.RequestHeaderModifier)
		case f.Type == gatewayv1.HTTPRouteFilterResponseHeaderModifier && f.ResponseHeaderModifier != nil:
			out.Response = headersOf(f.ResponseHeaderModifier)
		case f.Type == gatewayv1.HTTPRouteFilterRequestRedirect && f.RequestRedirect != nil:
			r := f.RequestRedirect
			out.Redirect = &gatewayfeed.Redirect{
				Scheme: deref(r.Scheme, ""), Hostname: string(deref(r.Hostname, "")), Port: uint16(deref(r.Port, 0)),
				Path: pathOf(r.Path), Code: deref(r.StatusCode, 302)}
		case f.Type == gatewayv1.HTTPRouteFilterURLRewrite && f.URLRewrite != nil:
			out.Rewrite = &gatewayfeed.Rewrite{Hostname: string(deref(f.URLRewrite.Hostname, "")),
				Path: pathOf(f.URLRewrite.Path)}
		case f.Type == gatewayv1.HTTPRouteFilterRequestMirror && f.RequestMirror != nil:
			out.Mirrors = append(out.Mirrors, b.mirror(f.RequestMirror))
		case f.Type == gatewayv1.HTTPRouteFilterCORS && f.CORS != nil:
			out.CORS = corsOf(f.CORS)
		default:
			// "the Filter MUST NOT be skipped. Instead, requests that would have been
			// processed by that filter MUST receive a HTTP error response."
			b.refuse(gatewayv1.RouteReasonUnsupportedValue, "filter %s is not supported", f.Type)
			out.Fail = true
		}
	}
	return out
}

func (b *refs) mirror(f *gatewayv1.HTTPRequestMirrorFilter) gatewayfeed.Mirror {
	m := gatewayfeed.Mirror{Backend: b.object(f.BackendRef), Numerator: 100, Denominator: 100}
	if f.Percent != nil {
		m.Numerator = *f.Percent
	}
	if f.Fraction != nil {
		m.Numerator, m.Denominator = f.Fraction.Numerator, deref(f.Fraction.Denominator, 100)
	}
	return m
}

func corsOf(f *gatewayv1.HTTPCORSFilter) *gatewayfeed.CORS {
	out := &gatewayfeed.CORS{Credentials: deref(f.AllowCredentials, false), MaxAge: f.MaxAge}
	for _, o := range f.AllowOrigins {
		out.Origins = append(out.Origins, string(o))
	}
	for _, m := range f.AllowMethods {
		out.Methods = append(out.Methods, string(m))
	}
	for _, h := range f.AllowHeaders {
		out.Headers = append(out.Headers, string(h))
	}
	for _, h := range f.ExposeHeaders {
		out.Expose = append(out.Expose, string(h))
	}
	return out
}

func (b *refs) grpcRules(rules []gatewayv1.GRPCRouteRule) (out []gatewayfeed.Rule) {
	for _, rule := range rules {
		r := gatewayfeed.Rule{Filters: b.grpcFilters(rule.Filters)}
		for _, m := range rule.Matches {
			r.Matches = append(r.Matches, b.grpcMatch(&m))
		}
		if rule.SessionPersistence != nil {
			b.refuse(gatewayv1.RouteReasonUnsupportedValue, "sessionPersistence is not supported")
		}
		for _, ref := range rule.BackendRefs {
			back := b.backend(ref.BackendRef)
			f := b.grpcFilters(ref.Filters)
			f.Fail = f.Fail || back.Filters.Fail
			back.Filters = f
			r.Backends = append(r.Backends, back)
		}
		out = append(out, r)
	}
	return out
}

func (b *refs) grpcFilters(list []gatewayv1.GRPCRouteFilter) gatewayfeed.Filters {
	var same []gatewayv1.HTTPRouteFilter
	for _, f := range list {
		same = append(same, gatewayv1.HTTPRouteFilter{
			Type:                   gatewayv1.HTTPRouteFilterType(f.Type),
			RequestHeaderModifier:  f.RequestHeaderModifier,
			ResponseHeaderModifier: f.ResponseHeaderModifier,
			RequestMirror:          f.RequestMirror,
		})
	}
	return b.filters(same)
}

// grpcMatch is of the path that gRPC makes of service and method
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
func (b *refs) grpcMatch(m *gatewayv1.GRPCRouteMatch) (out gatewayfeed.Match) {
	if g := m.Method; g != nil {
		service, method := deref(g.Service, ""), deref(g.Method, "")
		switch {
		case deref(g.Type, gatewayv1.GRPCMethodMatchExact) == gatewayv1.GRPCMethodMatchRegularExpression:
			out.PathKind, out.Path = gatewayfeed.Regex, "/"+cmp.Or(service, "[^/]+")+"/"+cmp.Or(method, "[^/]+")
			b.regex(out.Path)
		case service != "" && method != "":
			out.Path = "/" + service + "/" + method
		case service != "":
			out.PathKind, out.Path = gatewayfeed.Prefix, "/"+service
		case method != "":
			out.PathKind, out.Path = gatewayfeed.Regex, "/[^/]+/"+regexp.QuoteMeta(method)
		}
	}
	for _, h := range m.Headers {
		v := gatewayfeed.Value{Name: string(h.Name), Value: h.Value}
		if deref(h.Type, gatewayv1.GRPCHeaderMatchExact) == gatewayv1.GRPCHeaderMatchRegularExpression {
			v.Kind = gatewayfeed.Regex
			b.regex(h.Value)
		}
		out.Headers = append(out.Headers, v)
	}
	return out
}
