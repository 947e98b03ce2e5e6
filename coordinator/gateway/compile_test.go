package gateway

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// world has a class of ours, two nodes, and Services by their names.
func world(t *testing.T, services ...string) *World {
	w := &World{
		Classes: []*gatewayv1.GatewayClass{{ObjectMeta: metav1.ObjectMeta{Name: "shoal"},
			Spec: gatewayv1.GatewayClassSpec{ControllerName: Controller}}},
		Namespace: func(name string) *corev1.Namespace {
			return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		},
		Service: func(n types.NamespacedName) *corev1.Service {
			if !slices.Contains(services, n.String()) {
				return nil
			}
			return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: n.Name},
				Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80,
					Protocol: corev1.ProtocolTCP}}}}
		},
		Secret:    func(types.NamespacedName) *corev1.Secret { return nil },
		ConfigMap: func(types.NamespacedName) *corev1.ConfigMap { return nil },
	}
	for _, name := range []string{"node1", "node2"} {
		w.Nodes = append(w.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0." + name[4:]}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
	}
	return w
}

func parse[T any](t *testing.T, text string) *T {
	t.Helper()
	var out T
	if err := yaml.UnmarshalStrict([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

const webGateway = `
metadata: {namespace: a, name: web, uid: u, generation: 3}
spec: {gatewayClassName: shoal, listeners: [{name: http, port: 80, protocol: HTTP, hostname: "*.example.com"}]}`

const helloRoute = `
metadata: {namespace: a, name: hello, generation: 2}
spec: {parentRefs: [{name: web}], hostnames: [hello.example.com, other.org], rules: [{backendRefs: [{name: hello, port: 80}]}]}`

func condition(t *testing.T, list []metav1.Condition, name string, status metav1.ConditionStatus, reason string) {
	t.Helper()
	c := meta.FindStatusCondition(list, name)
	if c == nil || c.Status != status || c.Reason != reason {
		t.Errorf("%s is not %s for %s: %+v", name, status, reason, list)
	}
}

// settle compiles, and again with the Services that the first plan asked for.
func settle(w *World) *Plan {
	p := Compile(w, metav1.NewTime(time.Unix(1, 0)))
	w.Owned = nil
	for _, s := range p.Services {
		have := s.Service.DeepCopy()
		have.Spec.ClusterIPs = []string{"10.96.0.9"}
		w.Owned = append(w.Owned, have)
	}
	return Compile(w, metav1.NewTime(time.Unix(2, 0)))
}

func TestGateway(t *testing.T) {
	w := world(t, "a/hello")
	w.Gateways = append(w.Gateways, parse[gatewayv1.Gateway](t, webGateway))
	w.HTTPRoutes = append(w.HTTPRoutes, parse[gatewayv1.HTTPRoute](t, helloRoute))
	first := Compile(w, metav1.Now())
	condition(t, first.Gateways[0].Status.Conditions, "Programmed", metav1.ConditionFalse, "AddressNotAssigned")
	if len(first.Config.Ports) != 0 {
		t.Errorf("a port without a Service: %+v", first.Config.Ports)
	}
	p := settle(w)
	g := p.Gateways[0]
	condition(t, g.Status.Conditions, "Accepted", metav1.ConditionTrue, "Accepted")
	condition(t, g.Status.Conditions, "Programmed", metav1.ConditionTrue, "Programmed")
	if g.Status.Conditions[0].ObservedGeneration != 3 || g.Status.Listeners[0].AttachedRoutes != 1 ||
		g.Status.Addresses[0].Value != "10.96.0.9" {
		t.Errorf("status %+v", g.Status)
	}
	condition(t, p.HTTP[0].Status.Parents[0].Conditions, "ResolvedRefs", metav1.ConditionTrue, "ResolvedRefs")
	port := p.Config.Ports[0]
	if port.Number != firstPort || port.Public != 80 || !slices.Equal(port.Listeners[0].Routes[0].Hostnames,
		[]string{"hello.example.com"}) {
		t.Errorf("port %+v", port)
	}
	if err := p.Config.Check(); err != nil {
		t.Error(err)
	}
	s := p.Services[0]
	if len(s.Slices) != 1 || len(s.Slices[0].Endpoints) != 2 || *s.Slices[0].Ports[0].Port != firstPort {
		t.Errorf("endpoints %+v", s.Slices)
	}
	if w.Gateways[0].Status.Listeners != nil || w.HTTPRoutes[0].Status.Parents != nil {
		t.Error("what the informers share was changed")
	}
}

// TestNodesWithout: a node whose agent says that it has no proxy is no endpoint, so that nobody
// is led to it and no load balancer's address is announced there, and is told nothing.
func TestNodesWithout(t *testing.T) {
	w := world(t, "a/hello")
	w.Nodes[1].Annotations = map[string]string{gatewayfeed.ProxyAnnotation: "false"}
	w.Gateways = append(w.Gateways, parse[gatewayv1.Gateway](t, webGateway))
	w.IngressClasses = append(w.IngressClasses, &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "shoal"},
		Spec: networkingv1.IngressClassSpec{Controller: IngressController}})
	w.Ingresses = append(w.Ingresses, parse[networkingv1.Ingress](t, `
metadata: {namespace: a, name: in}
spec: {ingressClassName: shoal, defaultBackend: {service: {name: hello, port: {number: 80}}}}`))
	p := settle(w)
	if !p.Nodes["node1"] || p.Nodes["node2"] {
		t.Errorf("told are %v", p.Nodes)
	}
	for _, s := range p.Services {
		for _, sl := range s.Slices {
			if len(sl.Endpoints) != 1 || *sl.Endpoints[0].NodeName != "node1" {
				t.Errorf("endpoints of %s: %+v", s.Service.Name, sl.Endpoints)
			}
		}
	}
	if list := p.Ingresses[0].Status.LoadBalancer.Ingress; len(list) != 1 || list[0].IP != "10.0.0.1" {
		t.Errorf("an Ingress is reached at %+v", list)
	}
}

// TestReferences: what may not be used is not in the configuration, and the status says why.
func TestReferences(t *testing.T) {
	for _, c := range []struct{ ref, grant, reason, service string }{
		{"{name: hello, port: 80}", "", "ResolvedRefs", "hello"},
		{"{name: none, port: 80}", "", "BackendNotFound", ""},
		{"{name: hello, port: 81}", "", "BackendNotFound", ""},
		{"{name: far, namespace: b, port: 80}", "", "RefNotPermitted", ""},
		{"{name: far, namespace: b, port: 80}", "{group: '', kind: Service}", "ResolvedRefs", "far"},
		{"{name: far, namespace: b, port: 80}", "{group: '', kind: Service, name: another}", "RefNotPermitted", ""},
		{"{name: far, namespace: b, port: 80}", "{group: '', kind: Secret}", "RefNotPermitted", ""},
		{"{group: x.example, kind: Thing, name: hello, port: 80}", "", "InvalidKind", ""},
	} {
		w := world(t, "a/hello", "b/far")
		w.Gateways = append(w.Gateways, parse[gatewayv1.Gateway](t, webGateway))
		w.HTTPRoutes = append(w.HTTPRoutes, parse[gatewayv1.HTTPRoute](t, strings.ReplaceAll(helloRoute,
			"{name: hello, port: 80}", c.ref)))
		if c.grant != "" {
			w.Grants = append(w.Grants, parse[gatewayv1.ReferenceGrant](t, `
metadata: {namespace: b, name: g}
spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: a}], to: [`+c.grant+`]}`))
		}
		p := settle(w)
		status := metav1.ConditionFalse
		if c.reason == "ResolvedRefs" {
			status = metav1.ConditionTrue
		}
		condition(t, p.HTTP[0].Status.Parents[0].Conditions, "ResolvedRefs", status, c.reason)
		if got := p.Config.Ports[0].Listeners[0].Routes[0].Rules[0].Backends[0]; got.Service != c.service ||
			got.Weight != 1 {
			t.Errorf("%s: backend %+v", c.ref, got)
		}
	}
}

// TestAttachment: who may attach to what.
func TestAttachment(t *testing.T) {
	for _, c := range []struct{ gateway, route, reason string }{
		{"", "", "Accepted"},
		{"", "parentRefs: [{name: web, sectionName: none}]", "NoMatchingParent"},
		{"", "parentRefs: [{name: web, port: 81}]", "NoMatchingParent"},
		{"hostname: other.com", "", "NoMatchingListenerHostname"},
		{"allowedRoutes: {kinds: [{kind: GRPCRoute}]}", "", "NotAllowedByListeners"},
		{"allowedRoutes: {namespaces: {from: None}}", "", "NotAllowedByListeners"},
	} {
		w := world(t, "a/hello")
		g, r := webGateway, helloRoute
		if c.gateway != "" {
			g = strings.ReplaceAll(g, `hostname: "*.example.com"`, c.gateway)
		}
		if c.route != "" {
			r = strings.ReplaceAll(r, "parentRefs: [{name: web}]", c.route)
		}
		w.Gateways = append(w.Gateways, parse[gatewayv1.Gateway](t, g))
		w.HTTPRoutes = append(w.HTTPRoutes, parse[gatewayv1.HTTPRoute](t, r))
		p := settle(w)
		status := metav1.ConditionFalse
		if c.reason == "Accepted" {
			status = metav1.ConditionTrue
		}
		condition(t, p.HTTP[0].Status.Parents[0].Conditions, "Accepted", status, c.reason)
	}
}

// TestOthers: neither a class of another, nor a Service that somebody else made, is touched.
func TestOthers(t *testing.T) {
	w := world(t)
	w.Gateways = append(w.Gateways, parse[gatewayv1.Gateway](t, strings.ReplaceAll(webGateway, "shoal", "another")))
	if p := settle(w); len(p.Gateways)+len(p.Services)+len(p.Config.Ports) != 0 {
		t.Errorf("of another's class: %+v", p)
	}
	w = world(t)
	w.Gateways = append(w.Gateways, parse[gatewayv1.Gateway](t, webGateway))
	w.Owned = []*corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "gateway-web",
		Labels: map[string]string{Label: "true"}}}}
	p := Compile(w, metav1.Now())
	if len(p.Services) != 0 {
		t.Errorf("a Service of another is written: %+v", p.Services)
	}
	condition(t, p.Gateways[0].Status.Conditions, "Programmed", metav1.ConditionFalse, "Pending")
}

// TestNumbers: a Service's port of nodes counts if it is of our range, of a Gateway of ours, and
// nobody else's: of two that say the same it is that of the plan before, or of the older.
func TestNumbers(t *testing.T) {
	w := world(t)
	inB := strings.NewReplacer("namespace: a", "namespace: b", "uid: u", "uid: v")
	other := parse[gatewayv1.Gateway](t, inB.Replace(webGateway))
	w.Gateways = append(w.Gateways, parse[gatewayv1.Gateway](t, webGateway), other)
	numbers := func(p *Plan) map[string]uint16 {
		out := map[string]uint16{}
		for place, n := range p.Numbers {
			out[place.Namespace] = n
		}
		return out
	}
	p := settle(w)
	first := numbers(p)
	if len(first) != 2 || first["a"] == first["b"] {
		t.Fatalf("numbers %v", first)
	}
	set := func(namespace string, number uint16, made int64) {
		for _, s := range w.Owned {
			if s.Namespace == namespace {
				s.Spec.Ports[0].TargetPort.IntVal, s.CreationTimestamp = int32(number), metav1.NewTime(time.Unix(made, 0))
			}
		}
	}
	set("a", first["a"], 20)
	set("b", first["a"], 10) // older, and says what the other has
	w.Numbers = p.Numbers
	if got := numbers(Compile(w, metav1.Now())); len(got) != 1 || got["a"] != first["a"] {
		t.Errorf("a number that another plan gave to a: %v", got)
	}
	p = Compile(w, metav1.Now())
	for _, s := range p.Services {
		if n := s.Service.Spec.Ports[0].TargetPort.IntVal; s.Service.Namespace == "b" &&
			(n == int32(first["a"]) || n < firstPort || n > lastPort) {
			t.Errorf("b is to have %d", n)
		}
	}
	w.Numbers = nil
	if got := numbers(Compile(w, metav1.Now())); len(got) != 1 || got["b"] != first["a"] {
		t.Errorf("without a plan before, the older has it: %v", got)
	}
	set("b", 10250, 10)
	if got := numbers(Compile(w, metav1.Now())); len(got) != 1 || got["a"] != first["a"] {
		t.Errorf("out of the range: %v", got)
	}
}

// TestBackendsThatLeadBack: the Service of a Gateway is no backend, and an expression counts as
// the proxy uses it.
func TestBackendsThatLeadBack(t *testing.T) {
	w := world(t, "a/hello")
	services := w.Service
	w.Service = func(n types.NamespacedName) *corev1.Service {
		s := services(n)
		if s != nil {
			s.Labels = map[string]string{Label: "true"}
		}
		return s
	}
	w.Gateways = append(w.Gateways, parse[gatewayv1.Gateway](t, webGateway))
	w.HTTPRoutes = append(w.HTTPRoutes, parse[gatewayv1.HTTPRoute](t, helloRoute))
	p := settle(w)
	condition(t, p.HTTP[0].Status.Parents[0].Conditions, "ResolvedRefs", metav1.ConditionFalse, "BackendNotFound")

	w = world(t, "a/hello")
	w.Gateways = append(w.Gateways, parse[gatewayv1.Gateway](t, webGateway))
	w.HTTPRoutes = append(w.HTTPRoutes, parse[gatewayv1.HTTPRoute](t, strings.Replace(helloRoute, "rules: [{",
		`rules: [{matches: [{path: {type: RegularExpression, value: '\Qx'}}], `, 1)))
	p = settle(w)
	condition(t, p.HTTP[0].Status.Parents[0].Conditions, "Accepted", metav1.ConditionFalse, "UnsupportedValue")
}

// TestIngress: rules, the default and where it is reached; without a class of ours nothing.
func TestIngress(t *testing.T) {
	w := world(t, "a/hello", "a/rest")
	w.Classes = nil
	w.Ingresses = append(w.Ingresses, parse[networkingv1.Ingress](t, `
metadata: {namespace: a, name: web}
spec:
  ingressClassName: shoal
  defaultBackend: {service: {name: rest, port: {number: 80}}}
  rules: [{host: "*.example.com", http: {paths: [{path: /x, pathType: Exact, backend: {service: {name: hello, port: {name: http}}}}]}}]`))
	if p := settle(w); len(p.Config.Ports) != 0 || len(p.Ingresses) != 0 {
		t.Errorf("without a class: %+v", p.Config)
	}
	w.IngressClasses = []*networkingv1.IngressClass{{ObjectMeta: metav1.ObjectMeta{Name: "shoal"},
		Spec: networkingv1.IngressClassSpec{Controller: IngressController}}}
	p := settle(w)
	if got := p.Ingresses[0].Status.LoadBalancer.Ingress; len(got) != 2 || got[0].IP != "10.0.0.1" {
		t.Errorf("status %+v", got)
	}
	routes := p.Config.Ports[0].Listeners[0].Routes
	if p.Config.Ports[0].Ingress != gatewayfeed.IngressHTTP || len(routes) != 2 || !routes[0].OneLabel ||
		routes[0].Rules[0].Backends[0].Service != "hello" || routes[1].Rules[0].Backends[0].Service != "rest" {
		t.Errorf("%+v", p.Config.Ports)
	}
}
