package networking

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func expect(t *testing.T, name string, errs field.ErrorList, want string) {
	t.Helper()
	if want == "" && len(errs) > 0 || want != "" &&
		(len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), want)) {
		t.Errorf("%s: %v, want %q", name, errs, want)
	}
}

// ING-1, ING-5, ING-6, ING-7, ING-10: the messages are v1.36's.
func TestValidateIngress(t *testing.T) {
	service := func() *networkingv1.IngressBackend {
		return &networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}}
	}
	rule := func(host, path string, pathType networkingv1.PathType) networkingv1.IngressRule {
		return networkingv1.IngressRule{Host: host,
			IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
				Paths: []networkingv1.HTTPIngressPath{{Path: path, PathType: &pathType, Backend: *service()}},
			}}}
	}
	for name, c := range map[string]struct {
		change func(*networkingv1.Ingress)
		want   string
	}{
		"good":     {func(*networkingv1.Ingress) {}, ""},
		"nothing":  {func(i *networkingv1.Ingress) { i.Spec = networkingv1.IngressSpec{} }, "either `defaultBackend` or `rules` must be specified"},
		"default":  {func(i *networkingv1.Ingress) { i.Spec = networkingv1.IngressSpec{DefaultBackend: service()} }, ""},
		"wildcard": {func(i *networkingv1.Ingress) { i.Spec.Rules[0].Host = "*.example.com" }, ""},
		"address":  {func(i *networkingv1.Ingress) { i.Spec.Rules[0].Host = "192.0.2.1" }, "must be a DNS name, not an IP address"},
		"no_type":  {func(i *networkingv1.Ingress) { i.Spec.Rules[0].HTTP.Paths[0].PathType = nil }, "pathType: Required value: pathType must be specified"},
		"odd_type": {func(i *networkingv1.Ingress) { i.Spec.Rules[0] = rule("a.b", "/", "Odd") }, `supported values: "Exact", "ImplementationSpecific", "Prefix"`},
		"relative": {func(i *networkingv1.Ingress) { i.Spec.Rules[0] = rule("a.b", "x", networkingv1.PathTypeExact) }, "must be an absolute path"},
		"dots": {func(i *networkingv1.Ingress) {
			i.Spec.Rules[0] = rule("a.b", "/a/..", networkingv1.PathTypePrefix)
		}, "cannot end with '/..'"},
		"slashes": {func(i *networkingv1.Ingress) { i.Spec.Rules[0] = rule("a.b", "//", networkingv1.PathTypePrefix) },
			"must not contain '//'"},
		"free_path": {func(i *networkingv1.Ingress) {
			i.Spec.Rules[0] = rule("a.b", "/a//..", networkingv1.PathTypeImplementationSpecific)
		}, ""},
		"two_backends": {func(i *networkingv1.Ingress) {
			i.Spec.DefaultBackend = service()
			i.Spec.DefaultBackend.Resource = &corev1.TypedLocalObjectReference{Kind: "K", Name: "n"}
		}, "cannot set both resource and service backends"},
		"no_backend": {func(i *networkingv1.Ingress) { i.Spec.DefaultBackend = &networkingv1.IngressBackend{} }, "resource or service backend is required"},
		"no_port": {func(i *networkingv1.Ingress) {
			i.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Port.Number = 0
		}, "port name or number is required"},
		"two_ports": {func(i *networkingv1.Ingress) {
			i.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Port.Name = "http"
		}, "cannot set both port name & port number"},
		"secret": {func(i *networkingv1.Ingress) {
			i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"a.b"}, SecretName: "A_"}}
		}, "spec.tls[0].secretName: Invalid value"},
		"two_classes": {func(i *networkingv1.Ingress) {
			i.Annotations, i.Spec.IngressClassName = map[string]string{classAnnotation: "a"}, ptr.To("b")
		}, "must match `ingressClassName` when both are specified"},
	} {
		i := &networkingv1.Ingress{
			Spec: networkingv1.IngressSpec{
				Rules: []networkingv1.IngressRule{rule("a.b", "/", networkingv1.PathTypePrefix)}}}
		c.change(i)
		expect(t, name, validateNewIngress(i), c.want)
	}
	expect(t, "status", validateBalancer([]networkingv1.IngressLoadBalancerIngress{{IP: "x"}}, nil), "must be a valid IP address")
}

func TestIngressCells(t *testing.T) {
	rules := []networkingv1.IngressRule{{Host: "a"}, {Host: "b"}, {Host: "c"}, {Host: "d"}, {Host: "e"}}
	if got := hostsCell(rules); got != "a,b,c + 2 more..." {
		t.Error(got)
	}
	if got := hostsCell(nil); got != "*" {
		t.Error(got)
	}
	if got := addressCell(
		[]networkingv1.IngressLoadBalancerIngress{{Hostname: "z"}, {IP: "192.0.2.1"}, {IP: "192.0.2.1"}}); got != "192.0.2.1,z" {
		t.Error(got)
	}
}

// ING-17, ING-19, ING-21: the scope of a class's parameters.
func TestValidateClass(t *testing.T) {
	for name, c := range map[string]struct {
		controller string
		parameters *networkingv1.IngressClassParametersReference
		want       string
	}{
		"good":     {"example.com/x", nil, ""},
		"no_slash": {"example", nil, "must be a domain-prefixed path"},
		"long":     {"example.com/" + strings.Repeat("x", 250), nil, "Too long"},
		"cluster": {"a.b/c",
			&networkingv1.IngressClassParametersReference{Kind: "K", Name: "n", Scope: ptr.To("Cluster"),
				Namespace: ptr.To("x")}, "`parameters.scope` is set to 'Cluster'"},
		"no_namespace": {"a.b/c",
			&networkingv1.IngressClassParametersReference{Kind: "K", Name: "n", Scope: ptr.To("Namespace")}, "`parameters.scope` is set to 'Namespace'"},
		"odd": {"a.b/c",
			&networkingv1.IngressClassParametersReference{Kind: "K", Name: "n", Scope: ptr.To("x")}, `supported values: "Cluster", "Namespace"`},
	} {
		expect(t, name,
			validateClass(&networkingv1.IngressClassSpec{Controller: c.controller, Parameters: c.parameters}), c.want)
	}
}

// NP-1: defaults and v1.36's messages.
func TestNetworkPolicy(t *testing.T) {
	n := &networkingv1.NetworkPolicy{}
	n.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{Ports: []networkingv1.NetworkPolicyPort{{}}}}
	defaultNetworkPolicy(n)
	if len(n.Spec.PolicyTypes) != 2 || *n.Spec.Egress[0].Ports[0].Protocol != corev1.ProtocolTCP {
		t.Errorf("defaults: %+v", n.Spec)
	}
	port := func(p networkingv1.NetworkPolicyPort) networkingv1.NetworkPolicySpec {
		return networkingv1.NetworkPolicySpec{
			Ingress: []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{p}}}}
	}
	block := func(cidr string, except ...string) networkingv1.NetworkPolicySpec {
		peer := networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
		return networkingv1.NetworkPolicySpec{
			Egress: []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{peer}}}}
	}
	for name, c := range map[string]struct {
		spec networkingv1.NetworkPolicySpec
		want string
	}{
		"range": {
			port(networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(80)), EndPort: ptr.To[int32](90)}), ""},
		"backwards": {
			port(networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(80)), EndPort: ptr.To[int32](70)}), "must be greater than or equal to `port`"},
		"named": {
			port(networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromString("web")), EndPort: ptr.To[int32](70)}), "may not be specified when `port` is non-numeric"},
		"end_only":   {port(networkingv1.NetworkPolicyPort{EndPort: ptr.To[int32](70)}), "may not be specified when `port` is not specified"},
		"protocol":   {port(networkingv1.NetworkPolicyPort{Protocol: ptr.To(corev1.Protocol("ICMP"))}), `supported values: "TCP", "UDP", "SCTP"`},
		"block":      {block("10.0.0.0/8", "10.1.0.0/16"), ""},
		"not_inside": {block("10.0.0.0/8", "11.0.0.0/16"), "must be a strict subset of `cidr`"},
		"host_bits":  {block("10.0.0.1/8"), "spec.egress[0].to[0].ipBlock.cidr: Invalid value"},
		"types":      {networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"x"}}, `supported values: "Ingress", "Egress"`},
		"peer": {
			networkingv1.NetworkPolicySpec{
				Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{}}}}},
			"must specify a peer"},
	} {
		expect(t, name, validateNetworkPolicy(&c.spec, nil), c.want)
	}
	old := block("10.0.0.1/8")
	expect(t, "kept", validateNetworkPolicy(&old, &old), "")
}
