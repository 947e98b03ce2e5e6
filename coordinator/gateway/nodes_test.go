package gateway

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// told is what a node hears.
func told(t *testing.T, p *Plan, node string) *gatewayfeed.Config {
	t.Helper()
	if p.Fault != nil {
		t.Fatal(p.Fault)
	}
	l := p.Told.Line(node)
	line := bytes.Join(l.Parts, nil)
	if len(line) > p.Told.Most() {
		t.Errorf("the line of %s has %d bytes, more than the %d that it may have", node, len(line), p.Told.Most())
	}
	u, err := gatewayfeed.Decode(line)
	if err != nil || u.Config == nil {
		t.Fatalf("%s is told %s: %v", node, line, err)
	}
	return u.Config
}

// selfSigned is a Secret with a certificate.
func selfSigned(t *testing.T, namespace, name string) *corev1.Secret {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}}
}

// with has references lead to objects.
func with(w *World, objects ...metav1.Object) {
	secrets, maps := map[types.NamespacedName]*corev1.Secret{}, map[types.NamespacedName]*corev1.ConfigMap{}
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Secret:
			secrets[nameOf(o)] = o
		case *corev1.ConfigMap:
			maps[nameOf(o)] = o
		}
	}
	w.Secret = func(n types.NamespacedName) *corev1.Secret { return secrets[n] }
	w.ConfigMap = func(n types.NamespacedName) *corev1.ConfigMap { return maps[n] }
}

func parameters(namespace, name string, data ...string) *corev1.ConfigMap {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{}}
	for i := 0; i < len(data); i += 2 {
		m.Data[data[i]] = data[i+1]
	}
	return m
}

// endpointsOf are the nodes behind a Service of the plan.
func endpointsOf(p *Plan, name string) (out []string) {
	for _, s := range p.Services {
		for _, sl := range s.Slices {
			for _, e := range sl.Endpoints {
				if s.Service.Name == name {
					out = append(out, *e.NodeName)
				}
			}
		}
	}
	return out
}

func certificatesOf(c *gatewayfeed.Config) (out []string) {
	for name, cert := range c.Certificates {
		if cert.Key != "" {
			out = append(out, name[:strings.IndexByte(name, '@')])
		}
	}
	slices.Sort(out)
	return out
}

const edgeGateway = `
metadata: {namespace: a, name: edge, uid: e}
spec:
  gatewayClassName: shoal
  infrastructure: {parametersRef: {group: "", kind: ConfigMap, name: edge}}
  listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: edge}]}}]`

const secureGateway = `
metadata: {namespace: a, name: web, uid: u}
spec:
  gatewayClassName: shoal
  listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: web}]}}]`

// TestSelectedNodes: a Gateway with parameters is answered, and its keys are told, where they
// say; without, everywhere. Neither hears of the other's ports, and a node's labels decide anew.
func TestSelectedNodes(t *testing.T) {
	w := world(t)
	w.Gateways = append(w.Gateways, parse[gatewayv1.Gateway](t, edgeGateway), parse[gatewayv1.Gateway](t, secureGateway))
	with(w, selfSigned(t, "a", "edge"), selfSigned(t, "a", "web"),
		parameters("a", "edge", "nodeSelector", "site in (north, south),!drained\n"))
	w.Nodes[1].Labels = map[string]string{"site": "north"}
	check := func(node string, ports int, certificates ...string) {
		t.Helper()
		p := settle(w)
		c := told(t, p, node)
		if got := certificatesOf(c); len(c.Ports) != ports || !slices.Equal(got, certificates) {
			t.Errorf("%s is told of %d ports and %v, not %d and %v", node, len(c.Ports), got, ports, certificates)
		}
		if is := slices.Contains(certificates, "a/edge"); slices.Contains(endpointsOf(p, "gateway-edge"), node) != is {
			t.Errorf("%s is an endpoint: not %t", node, is)
		}
		if got := endpointsOf(p, "gateway-web"); len(got) != 2 {
			t.Errorf("the Gateway without parameters is at %v", got)
		}
	}
	check("node1", 1, "a/web")
	check("node2", 2, "a/edge", "a/web")
	w.Nodes[0].Labels = map[string]string{"site": "south"}
	check("node1", 2, "a/edge", "a/web")
	w.Nodes[1].Labels["drained"] = ""
	check("node2", 1, "a/web")
	want := map[types.NamespacedName]bool{{Namespace: "a", Name: "edge"}: true}
	if got := w.Parameters(); !reflect.DeepEqual(got, want) {
		t.Errorf("parameters are said to be in %v", got)
	}
	w.Nodes[0].Annotations = map[string]string{gatewayfeed.ProxyAnnotation: "false"}
	p := settle(w)
	condition(t, p.Gateways[0].Status.Conditions, "Accepted", metav1.ConditionTrue, "Accepted")
	condition(t, p.Gateways[0].Status.Conditions, "Programmed", metav1.ConditionFalse, "NoResources")
	condition(t, p.Gateways[1].Status.Conditions, "Programmed", metav1.ConditionTrue, "Programmed")
	if got := endpointsOf(p, "gateway-edge"); len(got) > 0 {
		t.Errorf("it is led to %v", got)
	}
	if len(w.Nodes) != 2 || !p.Nodes["node2"] || p.Nodes["node1"] {
		t.Errorf("the proxy is on %v", p.Nodes)
	}
}

// TestInvalidParameters: what is wrong is said and named, and no node answers; the Service stays,
// without endpoints, so that its addresses do.
func TestInvalidParameters(t *testing.T) {
	const ref = "{group: '', kind: ConfigMap, name: edge}"
	edge := func(data ...string) *corev1.ConfigMap { return parameters("a", "edge", data...) }
	binary := edge()
	binary.BinaryData = map[string][]byte{"nodeSelector": []byte("x")}
	for name, c := range map[string]struct {
		ref  string
		has  *corev1.ConfigMap
		says string
	}{
		"missing":   {ref, nil, "there is no ConfigMap a/edge"},
		"elsewhere": {ref, parameters("b", "edge", "nodeSelector", "x"), "there is no ConfigMap a/edge"},
		"kind":      {"{group: '', kind: Secret, name: edge}", nil, "not in a Secret"},
		"group":     {"{group: x.example, kind: ConfigMap, name: edge}", nil, "not in a ConfigMap.x.example"},
		"empty":     {ref, edge(), "has no nodeSelector"},
		"blank":     {ref, edge("nodeSelector", " \n"), "has no nodeSelector"},
		"unknown":   {ref, edge("nodeSelector", "x", "nodeSelectors", "y"), `unknown field "nodeSelectors"`},
		"pods":      {ref, edge("nodeSelector", "edge: \"true\"\n"), "nodeSelector: "},
		"long":      {ref, edge("nodeSelector", "x in ("+strings.Repeat("a,", 3000)+"a)"), "longer than 4096 bytes"},
		"binary":    {ref, binary, `unknown field "nodeSelector"`},
	} {
		t.Run(name, func(t *testing.T) {
			w := world(t)
			w.Gateways = append(w.Gateways, parse[gatewayv1.Gateway](t, edgeGateway))
			cert := selfSigned(t, "a", "edge")
			with(w, cert, parameters("a", "edge", "nodeSelector", "x"))
			w.Nodes[0].Labels = map[string]string{"x": ""}
			if c := told(t, settle(w), "node1"); len(certificatesOf(c)) != 1 {
				t.Fatalf("when they are right: %+v", c)
			}
			w.Gateways[0] = parse[gatewayv1.Gateway](t, strings.Replace(edgeGateway,
				`{group: "", kind: ConfigMap, name: edge}`, c.ref, 1))
			objects := []metav1.Object{cert}
			if c.has != nil {
				objects = append(objects, c.has)
			}
			with(w, objects...)
			p := Compile(w, metav1.Now())
			condition(t, p.Gateways[0].Status.Conditions, "Accepted", metav1.ConditionFalse, "InvalidParameters")
			condition(t, p.Gateways[0].Status.Conditions, "Programmed", metav1.ConditionFalse, "Invalid")
			if got := p.Gateways[0].Status.Conditions[0].Message; !strings.Contains(got, c.says) {
				t.Errorf("it says %q, not %q", got, c.says)
			}
			for _, node := range []string{"node1", "node2"} {
				if c := told(t, p, node); len(c.Ports)+len(c.Certificates) > 0 {
					t.Errorf("%s is told %+v", node, c)
				}
			}
			if len(p.Services) != 1 || len(p.Services[0].Slices) != 0 || p.Services[0].Service != w.Owned[0] {
				t.Errorf("Services %+v", p.Services)
			}
		})
	}
}

// TestClassParameters are those of the class's Gateways that have none; wrong ones make the class
// wrong, and nobody answers for any of its Gateways.
func TestClassParameters(t *testing.T) {
	w := world(t)
	w.Classes[0] = parse[gatewayv1.GatewayClass](t, `
metadata: {name: shoal}
spec:
  controllerName: shoal-project.io/gateway
  parametersRef: {group: "", kind: ConfigMap, name: all, namespace: infra}`)
	w.Gateways = append(w.Gateways, parse[gatewayv1.Gateway](t, edgeGateway), parse[gatewayv1.Gateway](t, secureGateway))
	objects := []metav1.Object{selfSigned(t, "a", "edge"), selfSigned(t, "a", "web"),
		parameters("a", "edge", "nodeSelector", "n=1"), parameters("infra", "all", "nodeSelector", "n=2")}
	with(w, objects...)
	w.Nodes[0].Labels, w.Nodes[1].Labels = map[string]string{"n": "1"}, map[string]string{"n": "2"}
	p := settle(w)
	condition(t, p.Classes[0].Status.Conditions, "Accepted", metav1.ConditionTrue, "Accepted")
	if got := certificatesOf(told(t, p, "node1")); !slices.Equal(got, []string{"a/edge"}) {
		t.Errorf("node1 is told %v", got)
	}
	if got := certificatesOf(told(t, p, "node2")); !slices.Equal(got, []string{"a/web"}) {
		t.Errorf("node2 is told %v", got)
	}
	with(w, objects[:3]...)
	p = Compile(w, metav1.Now())
	condition(t, p.Classes[0].Status.Conditions, "Accepted", metav1.ConditionFalse, "InvalidParameters")
	for i := range p.Gateways {
		condition(t, p.Gateways[i].Status.Conditions, "Accepted", metav1.ConditionFalse, "InvalidParameters")
	}
	if c := told(t, p, "node1"); len(p.Gateways) != 2 || len(c.Ports) > 0 {
		t.Errorf("of a class that is wrong node1 is told %+v", c)
	}
	if len(p.Services) != 2 || len(p.Services[0].Slices)+len(p.Services[1].Slices) > 0 {
		t.Errorf("Services %+v", p.Services)
	}
	w.Classes[0].Spec.ParametersRef.Namespace = nil
	p = Compile(w, metav1.Now())
	condition(t, p.Classes[0].Status.Conditions, "Accepted", metav1.ConditionFalse, "InvalidParameters")
}

// TestIngressParameters: the Ingresses of a class with parameters are answered by its nodes, also
// on their own ports, and behind a Service of the class; a node of several classes has them all.
func TestIngressParameters(t *testing.T) {
	w := world(t, "a/hello")
	w.Nodes = append(w.Nodes, w.Nodes[0].DeepCopy())
	w.Nodes[2].Name, w.Nodes[2].Status.Addresses[0].Address = "node3", "10.0.0.3"
	w.Nodes[0].Labels = map[string]string{"edge": ""}
	w.Nodes[1].Labels = map[string]string{"edge": "", "inner": ""}
	class := func(name, spec string) *networkingv1.IngressClass {
		return parse[networkingv1.IngressClass](t, fmt.Sprintf(`
metadata: {name: %s}
spec: {controller: shoal-project.io/ingress%s}`, name, spec))
	}
	ref := ", parameters: {kind: ConfigMap, name: %s, scope: Namespace, namespace: infra}"
	w.IngressClasses = []*networkingv1.IngressClass{class("edge", fmt.Sprintf(ref, "edge")),
		class("inner.example", fmt.Sprintf(ref, "inner"))}
	for _, name := range []string{"edge", "inner.example"} {
		w.Ingresses = append(w.Ingresses, parse[networkingv1.Ingress](t, fmt.Sprintf(`
metadata: {namespace: a, name: %s}
spec:
  ingressClassName: %s
  tls: [{secretName: %s}]
  defaultBackend: {service: {name: hello, port: {number: 80}}}`, name, name, name)))
	}
	objects := []metav1.Object{selfSigned(t, "a", "edge"), selfSigned(t, "a", "inner.example"),
		parameters("infra", "edge", "nodeSelector", "edge"), parameters("infra", "inner", "nodeSelector", "inner")}
	with(w, objects...)
	// routes are those of a node's own port, and how many ports it has.
	routes := func(p *Plan, node string) (names []string, ports int) {
		t.Helper()
		c := told(t, p, node)
		for _, port := range c.Ports {
			if port.Ingress == gatewayfeed.IngressHTTPS {
				for _, r := range port.Listeners[0].Routes {
					names = append(names, r.Name)
				}
			}
		}
		return names, len(c.Ports)
	}
	check := func(p *Plan, node string, ports int, certificates []string, want ...string) {
		t.Helper()
		if got, n := routes(p, node); !slices.Equal(got, want) || n != ports {
			t.Errorf("%s answers on %d ports for %v, not on %d for %v", node, n, got, ports, want)
		}
		if got := certificatesOf(told(t, p, node)); !slices.Equal(got, certificates) {
			t.Errorf("%s is told %v, not %v", node, got, certificates)
		}
	}
	p := settle(w)
	inner := ingressServiceName("inner.example")
	check(p, "node1", 4, []string{"a/edge"}, "Ingress/a/edge")
	check(p, "node2", 6, []string{"a/edge", "a/inner.example"}, "Ingress/a/edge", "Ingress/a/inner.example")
	check(p, "node3", 0, nil)
	if err := p.Config.Check(); err != nil {
		t.Error(err)
	}
	if got := endpointsOf(p, "shoal-ingress-edge"); !slices.Equal(got, []string{"node1", "node2"}) {
		t.Errorf("the Service of edge leads to %v", got)
	}
	if got := endpointsOf(p, inner); !slices.Equal(got, []string{"node2"}) || strings.Contains(inner, ".") {
		t.Errorf("the Service %s leads to %v", inner, got)
	}
	if got := p.Ingresses[1].Status.LoadBalancer.Ingress; len(got) != 1 || got[0].IP != "10.0.0.2" {
		t.Errorf("the Ingress of inner.example is at %v", got)
	}
	// One of a class without parameters is answered everywhere.
	w.IngressClasses = append(w.IngressClasses, class("plain", ""))
	w.Ingresses = append(w.Ingresses, parse[networkingv1.Ingress](t, `
metadata: {namespace: a, name: plain}
spec:
  ingressClassName: plain
  tls: [{secretName: edge}]
  defaultBackend: {service: {name: hello, port: {number: 80}}}`))
	p = settle(w)
	check(p, "node3", 4, []string{"a/edge"}, "Ingress/a/plain")
	check(p, "node2", 8, []string{"a/edge", "a/inner.example"}, "Ingress/a/edge", "Ingress/a/inner.example",
		"Ingress/a/plain")
	// Wrong parameters: nobody answers, the Service stays, and the Ingress says so.
	with(w, objects[:3]...)
	p = Compile(w, metav1.Now())
	check(p, "node2", 6, []string{"a/edge"}, "Ingress/a/edge", "Ingress/a/plain")
	if got := p.Invalid[w.IngressClasses[1]]; !strings.Contains(got, "infra/inner") || len(p.Invalid) != 1 {
		t.Errorf("invalid are %v", p.Invalid)
	}
	if got := p.Ingresses[1].Status.LoadBalancer.Ingress; len(got) != 1 || *got[0].Ports[0].Error != invalidError {
		t.Errorf("the Ingress of inner.example is at %v", got)
	}
	if !slices.ContainsFunc(p.Services, func(s *Wanted) bool { return s.Service.Name == inner && len(s.Slices) == 0 }) {
		t.Errorf("the Service %s is not there, or leads somewhere", inner)
	}
	// A reference without a namespace leads nowhere.
	w.IngressClasses[0].Spec.Parameters.Scope = nil
	if p = Compile(w, metav1.Now()); len(p.Invalid) != 2 {
		t.Errorf("invalid are %v", p.Invalid)
	}
}

// TestLines: nodes of the same Gateways share a line, a line says whether it is another, and what
// a node leaves is what others still have.
func TestLines(t *testing.T) {
	w := world(t)
	w.Gateways = append(w.Gateways, parse[gatewayv1.Gateway](t, edgeGateway), parse[gatewayv1.Gateway](t, secureGateway))
	with(w, selfSigned(t, "a", "edge"), selfSigned(t, "a", "web"), parameters("a", "edge", "nodeSelector", "x"))
	w.Nodes[0].Labels = map[string]string{"x": ""}
	first := settle(w)
	both, one := first.Told.Line("node1"), first.Told.Line("node2")
	if first.Told.Line("node1") != both || both == one || both.Sum == one.Sum || first.Told.Line("node3") != one {
		t.Error("lines are not shared as nodes are divided")
	}
	again := Compile(w, metav1.Now())
	if l := again.Told.Line("node1"); l.Sum != both.Sum || again.Told.Leaves(both, l) {
		t.Error("nothing has changed, and the line is another")
	}
	w.Nodes[0].Labels, w.Nodes[1].Labels = nil, map[string]string{"x": ""}
	next := Compile(w, metav1.Now())
	if !next.Told.Leaves(both, next.Told.Line("node1")) || next.Told.Leaves(one, next.Told.Line("node2")) {
		t.Error("it is node1 that leaves, and node2 that comes")
	}
	w.Gateways = w.Gateways[1:]
	if gone := Compile(w, metav1.Now()); gone.Told.Leaves(both, gone.Told.Line("node1")) {
		t.Error("a Gateway that is gone is nobody's")
	}
	if got := bytes.Join(Nothing().Line("any").Parts, nil); string(got) != "{\"config\":{}}\n" {
		t.Errorf("nothing is told as %s", got)
	}
	// However the nodes are divided, what is kept has a bound.
	for i := range 200 {
		name := fmt.Sprint("p", i)
		first.Told.ports = append(first.Told.ports, toldPort{part: partOf([]byte("{}")), key: name,
			on: &selection{nodes: map[string]bool{name: true}}})
	}
	for i := range 200 {
		first.Told.Line(fmt.Sprint("p", i))
	}
	if len(first.Told.lines) > linesMost {
		t.Errorf("%d lines are kept", len(first.Told.lines))
	}
}

// FuzzParameters: whatever somebody writes, parameters that are taken select some nodes by name,
// and those that are not say why.
func FuzzParameters(f *testing.F) {
	f.Add("nodeSelector", "a in (b,c),!d")
	f.Add("nodeSelector", "a: b")
	f.Add("other", "a")
	f.Fuzz(func(t *testing.T, name, text string) {
		w := world(t)
		with(w, parameters("a", "edge", name, text))
		c := &compiler{World: w, selections: map[string]*selection{}}
		s, err := c.selected(&types.NamespacedName{Namespace: "a", Name: "edge"}, nil)
		if (s == nil) != (err != nil) || s != nil && (name != parameterNodes || s.text == "") {
			t.Errorf("%q: %q selects %+v: %v", name, text, s, err)
		}
	})
}
