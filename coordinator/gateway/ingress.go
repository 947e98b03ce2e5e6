package gateway

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// annotationClass named an Ingress's class before spec.ingressClassName did (ING-23).
const annotationClass = "kubernetes.io/ingress.class"

// ingressGroup are classes whose Ingresses the same nodes answer for, behind a Service of their
// own: those without parameters, or one with.
type ingressGroup struct {
	service string
	on      *selection
	invalid bool            // the parameters are: nobody answers
	known   *corev1.Service // nil: there is none
	// addresses are where its Ingresses are reached, once addressed.
	addresses []networkingv1.IngressLoadBalancerIngress
	addressed bool
}

// ingressEntry is an Ingress that has room.
type ingressEntry struct {
	group        *ingressGroup
	routes       []gatewayfeed.Route
	certificates []string
}

// ingressParametersMost bounds the classes with parameters, each of which has ports of its own.
const ingressParametersMost = 64

// ingressClasses groups those of ours.
func (c *compiler) ingressClasses() {
	c.ingressOf = map[string]*ingressGroup{}
	var plain *ingressGroup
	for _, class := range byAge(c.IngressClasses) {
		if class.Spec.Controller != IngressController || class.DeletionTimestamp != nil {
			continue
		}
		if class.Spec.Parameters == nil {
			if plain == nil {
				plain = &ingressGroup{service: IngressName}
				c.ingressGroups = append(c.ingressGroups, plain)
			}
			c.ingressOf[class.Name] = plain
			continue
		}
		on, err := c.selected(ingressParameters(class))
		g := &ingressGroup{service: ingressServiceName(class.Name), on: on}
		if err == nil && len(c.ingressGroups) > ingressParametersMost {
			err = fmt.Errorf("more than %d classes of Ingresses have parameters", ingressParametersMost)
		}
		if err != nil {
			g.invalid = true
			c.plan.Invalid[class] = err.Error()
		}
		c.ingressGroups = append(c.ingressGroups, g)
		c.ingressOf[class.Name] = g
	}
	for _, g := range c.ingressGroups {
		for _, s := range c.Owned {
			if s.Namespace == IngressNamespace && s.Name == g.service {
				g.known = s
			}
		}
	}
}

// ingressServiceName is that of the Service of a class that has nodes of its own.
func ingressServiceName(class string) string {
	name := IngressName + "-" + class
	if len(validation.IsDNS1035Label(name)) > 0 {
		name = IngressName + "-" + digest(class)
	}
	return name
}

// ingresses puts those of our classes on the ports of Ingresses (ING-5 to ING-16, ING-28 to
// ING-37).
func (c *compiler) ingresses() {
	if len(c.ingressGroups) == 0 {
		return
	}
	var mine []*networkingv1.Ingress
	var all []*ingressEntry
	groups := map[*networkingv1.Ingress]*ingressGroup{}
	for _, in := range byAge(c.Ingresses) {
		name := in.Annotations[annotationClass]
		if in.Spec.IngressClassName != nil {
			name = *in.Spec.IngressClassName
		}
		g := c.ingressOf[name]
		if g == nil || in.DeletionTimestamp != nil {
			continue
		}
		mine = append(mine, in)
		groups[in] = g
		key := "Ingress/" + nameOf(in).String()
		if c.refused[key] || g.invalid {
			continue
		}
		c.routeOrder = append(c.routeOrder, key)
		e := &ingressEntry{group: g, routes: c.ingressRoutes(in)}
		for _, t := range in.Spec.TLS {
			cert, err := c.secret(types.NamespacedName{Namespace: in.Namespace, Name: t.SecretName})
			if err == nil {
				c.ingressCertificates[key] = append(c.ingressCertificates[key], cert)
				e.certificates = append(e.certificates, cert)
			}
		}
		all = append(all, e)
	}
	c.ingressPublic(all)
	for _, g := range c.ingressGroups {
		c.ingressService(g, all)
	}
	for _, in := range mine {
		c.ingressStatus(in, groups[in])
	}
}

// ingressListeners are what is answered for the Ingresses of some groups.
func ingressListeners(all []*ingressEntry, of func(*ingressGroup) bool) (plain, secure gatewayfeed.Listener) {
	plain = gatewayfeed.Listener{Name: "ingress/http", Protocol: gatewayfeed.HTTP}
	secure = gatewayfeed.Listener{Name: "ingress/https", Protocol: gatewayfeed.HTTPS}
	seen := map[string]bool{}
	for _, e := range all {
		if !of(e.group) {
			continue
		}
		plain.Routes = append(plain.Routes, e.routes...)
		for _, name := range e.certificates {
			if !seen[name] {
				seen[name] = true
				secure.Certificates = append(secure.Certificates, name)
			}
		}
	}
	secure.Routes = plain.Routes
	return plain, secure
}

// ingressRoutes are the rules of one, and what answers when none matches.
func (c *compiler) ingressRoutes(in *networkingv1.Ingress) (out []gatewayfeed.Route) {
	name := "Ingress/" + nameOf(in).String()
	for _, rule := range in.Spec.Rules {
		r := gatewayfeed.Route{Name: name, OneLabel: true}
		if rule.Host != "" {
			r.Hostnames = []string{strings.ToLower(rule.Host)}
		}
		if rule.HTTP == nil {
			// All of the host's requests go to the default (IngressRuleValue).
			if in.Spec.DefaultBackend != nil {
				r.Rules = append(r.Rules, c.ingressRule(in, gatewayfeed.Match{}, in.Spec.DefaultBackend))
				out = append(out, r)
			}
			continue
		}
		for _, p := range rule.HTTP.Paths {
			m := gatewayfeed.Match{Path: p.Path, PathKind: gatewayfeed.Prefix}
			if p.PathType != nil && *p.PathType == networkingv1.PathTypeExact {
				m.PathKind = gatewayfeed.Exact
			}
			r.Rules = append(r.Rules, c.ingressRule(in, m, &p.Backend))
		}
		out = append(out, r)
	}
	if in.Spec.DefaultBackend != nil {
		out = append(out, gatewayfeed.Route{Name: name, OneLabel: true,
			Rules: []gatewayfeed.Rule{c.ingressRule(in, gatewayfeed.Match{}, in.Spec.DefaultBackend)}})
	}
	return out
}

func (c *compiler) ingressRule(in *networkingv1.Ingress, m gatewayfeed.Match,
	b *networkingv1.IngressBackend) gatewayfeed.Rule {
	to := gatewayfeed.Backend{Weight: 1}
	if b.Service != nil {
		svc := c.Service(types.NamespacedName{Namespace: in.Namespace, Name: b.Service.Name})
		if svc != nil && svc.Spec.Type != corev1.ServiceTypeExternalName && !leadsToProxies(svc) {
			for _, p := range svc.Spec.Ports {
				if p.Protocol != corev1.ProtocolUDP && p.Protocol != corev1.ProtocolSCTP &&
					(b.Service.Port.Name != "" && p.Name == b.Service.Port.Name || b.Service.Port.Number == p.Port) {
					to.Namespace, to.Service, to.Port = in.Namespace, svc.Name, uint16(p.Port)
					if deref(p.AppProtocol, "") == "kubernetes.io/h2c" {
						to.Protocol = gatewayfeed.H2C
					}
				}
			}
		}
	}
	return gatewayfeed.Rule{Matches: []gatewayfeed.Match{m}, Backends: []gatewayfeed.Backend{to}}
}

// The ports of Ingresses that clients use.
var (
	ingressWeb = port{80, corev1.ProtocolTCP}
	ingressTLS = port{443, corev1.ProtocolTCP}
)

// ingressService asks for a group's Service, and puts the group on its ports.
func (c *compiler) ingressService(g *ingressGroup, all []*ingressEntry) {
	if g.invalid {
		if g.known != nil {
			c.plan.Services = append(c.plan.Services, held(g.known))
		}
		return
	}
	c.plan.Services = append(c.plan.Services, c.wanted(types.NamespacedName{Namespace: IngressNamespace,
		Name: g.service}, g.known, []port{ingressWeb, ingressTLS}, g.on))
	plain, secure := ingressListeners(all, func(other *ingressGroup) bool { return other == g })
	add := func(p port, l gatewayfeed.Listener) {
		if n := c.target(g.known, p); n != 0 {
			to := gatewayfeed.Port{Number: n, Public: uint16(p.number), Listeners: []gatewayfeed.Listener{l}}
			c.plan.Config.Ports = append(c.plan.Config.Ports, to)
			c.placed = append(c.placed, placed{to, g.on})
		}
	}
	add(ingressWeb, plain)
	if len(secure.Certificates) > 0 {
		add(ingressTLS, secure)
	}
}

// ingressPublic are the ports of nodes that clients use: a node answers there for all groups
// that it is one of.
func (c *compiler) ingressPublic(all []*ingressEntry) {
	ports := func(of func(*ingressGroup) bool) (out []gatewayfeed.Port) {
		plain, secure := ingressListeners(all, of)
		out = append(out, gatewayfeed.Port{Ingress: gatewayfeed.IngressHTTP, Public: uint16(ingressWeb.number),
			Listeners: []gatewayfeed.Listener{plain}})
		if len(secure.Certificates) > 0 {
			out = append(out, gatewayfeed.Port{Ingress: gatewayfeed.IngressHTTPS, Public: uint16(ingressTLS.number),
				Listeners: []gatewayfeed.Listener{secure}})
		}
		return out
	}
	// Nodes by the groups that they are of; nil: all nodes are of the same.
	divided := map[string]map[string]bool{}
	answered := slices.ContainsFunc(c.ingressGroups, func(g *ingressGroup) bool { return !g.invalid })
	if slices.ContainsFunc(c.ingressGroups, func(g *ingressGroup) bool { return g.on != nil || g.invalid }) {
		for node := range c.plan.Nodes {
			which := make([]byte, len(c.ingressGroups))
			for i, g := range c.ingressGroups {
				if !g.invalid && g.on.has(node) {
					which[i] = 1
				}
			}
			if divided[string(which)] == nil {
				divided[string(which)] = map[string]bool{}
			}
			divided[string(which)][node] = true
		}
	}
	if answered {
		c.plan.Config.Ports = append(c.plan.Config.Ports, ports(func(g *ingressGroup) bool { return !g.invalid })...)
	}
	if len(divided) == 0 && answered {
		for _, p := range ports(func(*ingressGroup) bool { return true }) {
			c.placed = append(c.placed, placed{p, nil})
		}
	}
	for _, which := range slices.Sorted(maps.Keys(divided)) {
		if strings.IndexByte(which, 1) < 0 {
			continue // no port is open there
		}
		of := func(g *ingressGroup) bool { return which[slices.Index(c.ingressGroups, g)] == 1 }
		for _, p := range ports(of) {
			c.placed = append(c.placed, placed{p, &selection{nodes: divided[which]}})
		}
	}
}

// addressesMost bounds the nodes that an Ingress's status names.
const addressesMost = 32

// ingressStatus says where an Ingress is reached (ING-29): at the addresses of its Service's load
// balancer or, without one, at the nodes' own.
func (c *compiler) ingressStatus(in *networkingv1.Ingress, g *ingressGroup) {
	out := in.DeepCopy()
	switch {
	case g.invalid:
		out.Status.LoadBalancer.Ingress = refusedAt([]networkingv1.IngressLoadBalancerIngress{{}}, invalidError)
	case c.refused["Ingress/"+nameOf(in).String()]:
		out.Status.LoadBalancer.Ingress = refusedAt(c.ingressAddresses(g), ingressLimitError)
	default:
		out.Status.LoadBalancer.Ingress = c.ingressAddresses(g)
	}
	c.plan.Ingresses = append(c.plan.Ingresses, out)
}

func (c *compiler) ingressAddresses(g *ingressGroup) (list []networkingv1.IngressLoadBalancerIngress) {
	if g.addressed {
		return g.addresses
	}
	for _, a := range balanced(g.known) {
		list = append(list, networkingv1.IngressLoadBalancerIngress{IP: a})
	}
	if len(list) == 0 {
		for _, n := range byName(c.Nodes) {
			for _, six := range []bool{false, true} {
				a := nodeAddress(n, six)
				if a != "" && serves(n) && g.on.has(n.Name) && ready(n) && len(list) < addressesMost {
					list = append(list, networkingv1.IngressLoadBalancerIngress{IP: a})
				}
			}
		}
	}
	g.addresses, g.addressed = list, true
	return list
}

// invalidError is what the status of an Ingress says of its ports where its class's parameters
// are wrong: it has no conditions.
const invalidError = "shoal-project.io/InvalidParameters"

// refusedAt says of each address that an Ingress is not answered there: it has no conditions.
func refusedAt(list []networkingv1.IngressLoadBalancerIngress,
	why string) (out []networkingv1.IngressLoadBalancerIngress) {
	for _, a := range list {
		a.Ports = []networkingv1.IngressPortStatus{{Port: 80, Protocol: corev1.ProtocolTCP, Error: &why}}
		out = append(out, a)
	}
	return out
}
