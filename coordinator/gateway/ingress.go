package gateway

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// annotationClass named an Ingress's class before spec.ingressClassName did (ING-23).
const annotationClass = "kubernetes.io/ingress.class"

// ingresses puts those of our classes on the ports of Ingresses (ING-5 to ING-16, ING-28 to
// ING-37).
func (c *compiler) ingresses() {
	ours := map[string]bool{}
	for _, class := range c.IngressClasses {
		if class.Spec.Controller == IngressController && class.DeletionTimestamp == nil {
			ours[class.Name] = true
		}
	}
	if len(ours) == 0 {
		return
	}
	plain := gatewayfeed.Listener{Name: "ingress/http", Protocol: gatewayfeed.HTTP}
	secure := gatewayfeed.Listener{Name: "ingress/https", Protocol: gatewayfeed.HTTPS}
	var mine []*networkingv1.Ingress
	seen := map[string]bool{}
	for _, in := range byAge(c.Ingresses) {
		name := in.Annotations[annotationClass]
		if in.Spec.IngressClassName != nil {
			name = *in.Spec.IngressClassName
		}
		if !ours[name] || in.DeletionTimestamp != nil {
			continue
		}
		mine = append(mine, in)
		key := "Ingress/" + nameOf(in).String()
		if c.refused[key] {
			continue
		}
		c.routeOrder = append(c.routeOrder, key)
		plain.Routes = append(plain.Routes, c.ingressRoutes(in)...)
		for _, t := range in.Spec.TLS {
			cert, err := c.secret(types.NamespacedName{Namespace: in.Namespace, Name: t.SecretName})
			if err == nil && !seen[cert] {
				seen[cert] = true
				c.ingressCertificates[key] = append(c.ingressCertificates[key], cert)
				secure.Certificates = append(secure.Certificates, cert)
			}
		}
	}
	secure.Routes = plain.Routes
	c.ingressPorts(plain, secure)
	c.ingressStatus(mine)
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

// ingressPorts are those of the nodes that clients use, and those of the Service.
func (c *compiler) ingressPorts(plain, secure gatewayfeed.Listener) {
	var known *corev1.Service
	for _, s := range c.Owned {
		if s.Namespace == IngressNamespace && s.Name == IngressName {
			known = s
		}
	}
	web, tls := port{80, corev1.ProtocolTCP}, port{443, corev1.ProtocolTCP}
	w := c.wanted(types.NamespacedName{Namespace: IngressNamespace, Name: IngressName}, known, []port{web, tls})
	c.plan.Services = append(c.plan.Services, w)
	add := func(name string, p port, l gatewayfeed.Listener) {
		list := []gatewayfeed.Listener{l}
		c.plan.Config.Ports = append(c.plan.Config.Ports, gatewayfeed.Port{Ingress: name, Public: uint16(p.number),
			Listeners: list})
		if n := c.target(known, p); n != 0 {
			c.plan.Config.Ports = append(c.plan.Config.Ports, gatewayfeed.Port{Number: n, Public: uint16(p.number),
				Listeners: list})
		}
	}
	add(gatewayfeed.IngressHTTP, web, plain)
	if len(secure.Certificates) > 0 {
		add(gatewayfeed.IngressHTTPS, tls, secure)
	}
}

// addressesMost bounds the nodes that an Ingress's status names.
const addressesMost = 32

// ingressStatus says where Ingresses are reached (ING-29): at the Service's load balancer's
// addresses or, without one, at the nodes' own.
func (c *compiler) ingressStatus(mine []*networkingv1.Ingress) {
	var list []networkingv1.IngressLoadBalancerIngress
	for _, s := range c.Owned {
		if s.Namespace == IngressNamespace && s.Name == IngressName {
			for _, a := range balanced(s) {
				list = append(list, networkingv1.IngressLoadBalancerIngress{IP: a})
			}
		}
	}
	if len(list) == 0 {
		for _, n := range byName(c.Nodes) {
			for _, six := range []bool{false, true} {
				if a := nodeAddress(n, six); a != "" && serves(n) && ready(n) && len(list) < addressesMost {
					list = append(list, networkingv1.IngressLoadBalancerIngress{IP: a})
				}
			}
		}
	}
	for _, in := range mine {
		out := in.DeepCopy()
		out.Status.LoadBalancer.Ingress = list
		if c.refused["Ingress/"+nameOf(in).String()] {
			out.Status.LoadBalancer.Ingress = refusedAt(list)
		}
		c.plan.Ingresses = append(c.plan.Ingresses, out)
	}
}

// refusedAt says of each address that an Ingress is not answered there: it has no conditions.
func refusedAt(list []networkingv1.IngressLoadBalancerIngress) (out []networkingv1.IngressLoadBalancerIngress) {
	for _, a := range list {
		a.Ports = []networkingv1.IngressPortStatus{{Port: 80, Protocol: corev1.ProtocolTCP, Error: new(ingressLimitError)}}
		out = append(out, a)
	}
	return out
}
