package gateway

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// TestShare: who asks for no more than an equal share has it, whatever others ask for; what
// they leave is the others'.
func TestShare(t *testing.T) {
	var all []demand
	ask := func(namespace string, n, bytes int) {
		for i := range n {
			all = append(all, demand{namespace, fmt.Sprint(namespace, i), amount{ports: 1, bytes: bytes}})
		}
	}
	ask("few", 2, 1)
	ask("many", 100, 1)
	ask("large", 1, 1000)
	most := amount{ports: 20, matches: 10, bytes: 300}
	refused := share(all, most)
	count := map[string]int{}
	for key := range refused {
		count[strings.TrimRight(key, "0123456789")]++
	}
	// 17 ports are left for many when few has 2 and large 1; large has more bytes than all.
	want := map[string]int{"many": 83, "large": 1}
	if !maps.Equal(count, want) || refused["many0"] || !refused["many99"] {
		t.Errorf("refused are %v, not %v: %v", count, want, slices.Sorted(maps.Keys(refused)))
	}
	if refused := share(all[:2], most); len(refused) > 0 {
		t.Errorf("refused though there is room: %v", refused)
	}
	all = nil
	ask("alone", 25, 1)
	if refused := share(all, most); len(refused) != 5 || refused["alone19"] || !refused["alone20"] {
		t.Errorf("of one alone are refused %v", refused)
	}
}

// TestLimits: a namespace that has too many routes, listeners or Ingresses loses its newest,
// whose status says why; another namespace, with a newer one, is served.
func TestLimits(t *testing.T) {
	w := world(t, "a/hello", "b/hello")
	class := &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "shoal"}}
	class.Spec.Controller = IngressController
	w.IngressClasses = append(w.IngressClasses, class)
	w.Gateways = append(w.Gateways, parse[gatewayv1.Gateway](t, `
metadata: {namespace: a, name: web, uid: u}
spec:
  gatewayClassName: shoal
  listeners:
  - {name: one, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
  - {name: two, port: 81, protocol: HTTP}
  - {name: three, port: 82, protocol: HTTP}`))
	route := `
metadata: {namespace: %s, name: r%d, creationTimestamp: 2026-01-01T00:00:%02dZ}
spec:
  parentRefs: [{namespace: a, name: web, sectionName: one}]
  hostnames: [r%d.example.com]
  rules: [{backendRefs: [{name: hello, port: 80}]}]`
	for i := range 20 {
		w.HTTPRoutes = append(w.HTTPRoutes, parse[gatewayv1.HTTPRoute](t, fmt.Sprintf(route, "a", i, i, i)))
	}
	w.HTTPRoutes = append(w.HTTPRoutes, parse[gatewayv1.HTTPRoute](t, fmt.Sprintf(route, "b", 50, 50, 50)))
	ingress := `
metadata: {namespace: %s, name: in%d, creationTimestamp: 2026-01-01T00:00:%02dZ}
spec:
  ingressClassName: shoal
  rules:
  - host: in.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: hello, port: {number: 80}}}}]}`
	for i := range 20 {
		w.Ingresses = append(w.Ingresses, parse[networkingv1.Ingress](t, fmt.Sprintf(ingress, "a", i, i)))
	}
	w.Ingresses = append(w.Ingresses, parse[networkingv1.Ingress](t, fmt.Sprintf(ingress, "b", 50, 50)))
	settle(w)
	all := compile(w, metav1.Now(), limits)
	if err := accepted(all.HTTP[19].Status.Parents[0].Conditions); err != "Accepted" {
		t.Errorf("within the limits: %s", err)
	}
	p := compile(w, metav1.Now(), amount{ports: 2, matches: 20, bytes: 1 << 20})
	names := func() (out []string) {
		for _, port := range p.Config.Ports {
			for _, l := range port.Listeners {
				for _, r := range l.Routes {
					out = append(out, r.Name)
				}
			}
		}
		return out
	}()
	for _, want := range []string{"HTTPRoute/a/r0", "HTTPRoute/b/r50", "Ingress/b/in50"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not served: %v", want, names)
		}
	}
	for _, want := range []string{"HTTPRoute/a/r19", "Ingress/a/in19"} {
		if slices.Contains(names, want) {
			t.Errorf("%s is served: %v", want, names)
		}
	}
	if len(names) > 20 {
		t.Errorf("%d routes are served, more than 20", len(names))
	}
	if got := accepted(p.HTTP[19].Status.Parents[0].Conditions); got != "LimitExceeded" {
		t.Errorf("the newest route of the large namespace: %s", got)
	}
	if got := accepted(p.HTTP[20].Status.Parents[0].Conditions); got != "Accepted" {
		t.Errorf("the route of the small namespace: %s", got)
	}
	if got := accepted(p.Gateways[0].Status.Listeners[2].Conditions); got != "LimitExceeded" {
		t.Errorf("the third listener: %s", got)
	}
	if got := accepted(p.Gateways[0].Status.Listeners[1].Conditions); got != "Accepted" {
		t.Errorf("the second listener: %s", got)
	}
	for i, want := range map[int]bool{19: true, 20: false} {
		at := p.Ingresses[i].Status.LoadBalancer.Ingress
		said := len(at) > 0 && len(at[0].Ports) > 0 && *at[0].Ports[0].Error == ingressLimitError
		if said != want {
			t.Errorf("Ingress %s says of a limit %t: %+v", nameOf(p.Ingresses[i]), said, at)
		}
	}
}

// accepted is the reason of the condition Accepted.
func accepted(list []metav1.Condition) string {
	for _, c := range list {
		if c.Type == "Accepted" {
			return c.Reason
		}
	}
	return ""
}
