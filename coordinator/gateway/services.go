package gateway

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

const (
	// Label marks the Services that lead to nodes' proxies; agents look for it
	// (service.LabelGateway there).
	Label = "shoal-project.io/gateway"
	// labelName names the Gateway that something is made for (GEP-1762).
	labelName = "gateway.networking.k8s.io/gateway-name"
	labelFrom = "gateway.networking.k8s.io/gateway-class-name"
	// Manager says who keeps the endpoints (discovery/v1).
	Manager = "gateway.shoal-project.io"

	firstPort, lastPort = gatewayfeed.FirstPort, gatewayfeed.LastPort

	// IngressNamespace and IngressName are of the Service of Ingresses.
	IngressNamespace = metav1.NamespaceSystem
	IngressName      = "shoal-ingress"
)

// Wanted is a Service with its endpoints.
type Wanted struct {
	Service *corev1.Service
	Slices  []*discoveryv1.EndpointSlice
	// Known is the Service that there is; nil: none.
	Known *corev1.Service
}

// port is one that clients use.
type port struct {
	number   int32
	protocol corev1.Protocol
}

func (p port) name() string { return strings.ToLower(string(p.protocol)) + "-" + fmt.Sprint(p.number) }

func portOf(l *listener) port {
	if l.Protocol == gatewayv1.UDPProtocolType {
		return port{l.Port, corev1.ProtocolUDP}
	}
	return port{l.Port, corev1.ProtocolTCP}
}

// Place is a port of a Service of ours.
type Place struct {
	types.NamespacedName
	port
}

// Numbers are the ports of nodes that lead to places.
type Numbers map[Place]uint16

// claims reads the numbers that Services have. Who may write a Service may write any: of
// several that say the same, it is that of the plan before, or of the oldest; what is
// outside of our range, or in a Service that no Gateway of ours controls, is nobody's.
func (c *compiler) claims() {
	type claim struct {
		Place
		number uint16
		made   metav1.Time
	}
	var all []claim
	for _, s := range c.Owned {
		if !c.controls(s) {
			continue
		}
		for _, p := range s.Spec.Ports {
			if n := p.TargetPort.IntValue(); n >= firstPort && n <= lastPort {
				all = append(all, claim{Place{nameOf(s), port{p.Port, p.Protocol}}, uint16(n), s.CreationTimestamp})
			}
		}
	}
	before := func(x claim) int {
		if c.Numbers[x.Place] == x.number {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b claim) int {
		return cmp.Or(cmp.Compare(before(a), before(b)), a.made.Compare(b.made.Time),
			cmp.Compare(a.String(), b.String()), cmp.Compare(a.name(), b.name()))
	})
	c.plan.Numbers = Numbers{}
	c.used = map[int32]bool{}
	for _, x := range all {
		if _, has := c.plan.Numbers[x.Place]; !has && !c.used[int32(x.number)] {
			c.plan.Numbers[x.Place], c.used[int32(x.number)] = x.number, true
		}
	}
}

// controls tells whether a Service is a Gateway's of ours, or that of Ingresses.
func (c *compiler) controls(s *corev1.Service) bool {
	if s.Namespace == IngressNamespace && slices.ContainsFunc(c.ingressGroups,
		func(g *ingressGroup) bool { return g.service == s.Name }) {
		return true
	}
	return slices.ContainsFunc(c.order, func(g *gateway) bool {
		return g.obj.Namespace == s.Namespace && serviceName(g.obj.Name) == s.Name && metav1.IsControlledBy(s, g.obj)
	})
}

// number is the port of nodes for a listener; 0: none yet.
func (c *compiler) number(g *gateway, l *listener) uint16 { return c.target(g.service, portOf(l)) }

func (c *compiler) target(s *corev1.Service, p port) uint16 {
	if s == nil {
		return 0
	}
	return c.plan.Numbers[Place{nameOf(s), p}]
}

// services asks for one for each gateway, and says where they are reached.
func (c *compiler) services() {
	owned := map[types.NamespacedName]*corev1.Service{}
	for _, s := range c.Owned {
		owned[nameOf(s)] = s
	}
	for _, g := range c.order {
		var ports []port
		for _, l := range g.listeners {
			if p := portOf(l); l.usable && !slices.Contains(ports, p) {
				ports = append(ports, p)
			}
		}
		if !g.accepted.ok {
			ports = nil
		}
		name := types.NamespacedName{Namespace: g.obj.Namespace, Name: serviceName(g.obj.Name)}
		g.service = owned[name]
		if g.service != nil && !metav1.IsControlledBy(g.service, g.obj) {
			g.service = nil
			g.usable = no(gatewayv1.GatewayReasonPending, fmt.Sprintf("Service %s is another's", name))
			continue
		}
		if g.held && g.service != nil {
			c.plan.Services = append(c.plan.Services, held(g.service))
			continue
		}
		if len(ports) == 0 {
			g.usable = no(gatewayv1.GatewayReasonNoResources, "no listener needs an address")
			g.service = nil
			continue
		}
		s := c.wanted(name, g.service, ports, g.on)
		if len(g.obj.Spec.Addresses) > 0 {
			s.Service.Spec.LoadBalancerIP = g.obj.Spec.Addresses[0].Value
		}
		s.Service.Labels[labelName], s.Service.Labels[labelFrom] = label(g.obj.Name),
			label(string(g.obj.Spec.GatewayClassName))
		if i := g.obj.Spec.Infrastructure; i != nil {
			for k, v := range i.Labels {
				if string(k) != Label {
					s.Service.Labels[string(k)] = string(v)
				}
			}
			for k, v := range i.Annotations {
				s.Service.Annotations[string(k)] = string(v)
			}
		}
		s.Service.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(g.obj, gatewayv1.SchemeGroupVersion.WithKind("Gateway"))}
		for _, sl := range s.Slices {
			sl.Labels[labelName] = s.Service.Labels[labelName]
		}
		c.plan.Services = append(c.plan.Services, s)
		g.wanted = s
		c.addressesOf(g)
	}
}

// label is a value that a label may have.
func label(name string) string {
	if len(validation.IsValidLabelValue(name)) > 0 {
		return digest(name)
	}
	return name
}

// serviceName is that of a Gateway's Service: Gateways may have longer names.
func serviceName(gateway string) string {
	name := "gateway-" + gateway
	if len(validation.IsDNS1035Label(name)) > 0 {
		name = "gateway-" + digest(gateway)
	}
	return name
}

// wanted is a Service whose endpoints are the nodes that answer.
func (c *compiler) wanted(name types.NamespacedName, known *corev1.Service, ports []port, on *selection) *Wanted {
	slices.SortFunc(ports, func(a, b port) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.protocol, b.protocol))
	})
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   name.Namespace,
			Name:        name.Name,
			Labels:      map[string]string{Label: "true", "app.kubernetes.io/managed-by": "shoal"},
			Annotations: map[string]string{},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer,
			// The proxy of the node that a client has reached answers, so that it sees the
			// client's own address.
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			IPFamilyPolicy:        new(corev1.IPFamilyPolicyPreferDualStack),
		},
	}
	var endpointPorts []discoveryv1.EndpointPort
	for _, p := range ports {
		number := int32(c.target(known, p))
		for n := int32(firstPort); number == 0 && n <= lastPort; n++ {
			if !c.used[n] {
				c.used[n], number = true, n
			}
		}
		if number == 0 {
			continue // all are taken: the listener stays without one, and says so
		}
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{
			Name: p.name(), Protocol: p.protocol, Port: p.number, TargetPort: intstr.FromInt32(number)})
		endpointPorts = append(endpointPorts, discoveryv1.EndpointPort{Name: new(p.name()), Protocol: &p.protocol,
			Port: &number})
	}
	return &Wanted{Service: svc, Known: known, Slices: c.slices(name, endpointPorts, on)}
}

// leadsToProxies tells of a Service whose endpoints are the proxies: as a backend it would
// send a request around for ever.
func leadsToProxies(s *corev1.Service) bool { return s.Labels[Label] != "" }

// slicesMost is how many endpoints a slice may have (discovery/v1).
const slicesMost = 1000

// serves tells whether a node runs the proxy. One that says nothing has an agent of before, and
// does.
func serves(n *corev1.Node) bool { return n.Annotations[gatewayfeed.ProxyAnnotation] != "false" }

// slices have all nodes that serve, each hinted for its own clients: traffic goes to another only
// while there is no proxy here that answers.
func (c *compiler) slices(name types.NamespacedName, ports []discoveryv1.EndpointPort,
	on *selection) (out []*discoveryv1.EndpointSlice) {
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		var all []discoveryv1.Endpoint
		for _, n := range c.Nodes {
			a := nodeAddress(n, family == discoveryv1.AddressTypeIPv6)
			if a == "" || !serves(n) || !on.has(n.Name) {
				continue
			}
			all = append(all, discoveryv1.Endpoint{
				Addresses: []string{a},
				NodeName:  &n.Name,
				Conditions: discoveryv1.EndpointConditions{Ready: new(ready(n)), Serving: new(ready(n)),
					Terminating: new(false)},
				Hints: &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: n.Name}}},
			})
		}
		slices.SortFunc(all, func(a, b discoveryv1.Endpoint) int { return cmp.Compare(*a.NodeName, *b.NodeName) })
		i := 0
		for part := range slices.Chunk(all, slicesMost) {
			out = append(out, &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: name.Namespace,
					Name:      fmt.Sprintf("%s-%s-%d", name.Name, strings.ToLower(string(family)), i),
					Labels: map[string]string{discoveryv1.LabelServiceName: name.Name,
						discoveryv1.LabelManagedBy: Manager},
				},
				AddressType: family,
				Endpoints:   part,
				Ports:       ports,
			})
			i++
		}
	}
	return out
}

func ready(n *corev1.Node) bool {
	return n.DeletionTimestamp == nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func nodeAddress(n *corev1.Node, six bool) string {
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if a.Type == corev1.NodeInternalIP && err == nil && ip.Is6() == six {
			return a.Address
		}
	}
	return ""
}

// balanced are the addresses that a load balancer gave a Service.
func balanced(s *corev1.Service) (out []string) {
	if s == nil {
		return nil
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		if i.IP != "" {
			out = append(out, i.IP)
		}
	}
	return out
}

// addressesOf says where a gateway is reached: at its load balancer's addresses, or,
// without one, inside the cluster.
func (c *compiler) addressesOf(g *gateway) {
	list := balanced(g.service)
	if len(list) == 0 && g.service != nil {
		list = g.service.Spec.ClusterIPs
	}
	for _, a := range list {
		if _, err := netip.ParseAddr(a); err == nil {
			g.addrs = append(g.addrs, gatewayv1.GatewayStatusAddress{Type: new(gatewayv1.IPAddressType), Value: a})
		}
	}
	g.usable = yes(gatewayv1.GatewayReasonProgrammed)
	if g.on.empty() {
		g.usable = no(gatewayv1.GatewayReasonNoResources, fmt.Sprintf("no node with the proxy is one of %q", g.on.text))
		return
	}
	if len(g.addrs) == 0 {
		g.usable = no(gatewayv1.GatewayReasonAddressNotAssigned, "the Gateway's Service has no address yet")
	}
	for _, a := range g.obj.Spec.Addresses {
		if a.Value != "" && !slices.Contains(list, a.Value) {
			g.usable = no(gatewayv1.GatewayReasonAddressNotUsable, fmt.Sprintf("nobody gives the address %s", a.Value))
		}
	}
}
