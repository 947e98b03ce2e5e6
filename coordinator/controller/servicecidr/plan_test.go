package servicecidr

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func cidr(name string, ranges ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: ranges}}
}

func service(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

func TestNeeded(t *testing.T) {
	small, large, other := cidr("small", "10.0.1.0/24"), cidr("large", "10.0.0.0/16"), cidr("other", "192.0.2.0/24")
	both := cidr("both", "10.0.1.0/24", "fd00::/112")
	inside, foreign := entry("10.0.1.5", service("a")), entry("10.0.1.6", service("b"))
	foreign.Labels = nil
	six := entry("fd00::5", service("c"))
	for name, c := range map[string]struct {
		of        *networkingv1.ServiceCIDR
		all       []*networkingv1.ServiceCIDR
		addresses []*networkingv1.IPAddress
		want      bool
	}{
		"alone": {small, []*networkingv1.ServiceCIDR{small, other},
			[]*networkingv1.IPAddress{inside}, true},
		"in a larger one": {small, []*networkingv1.ServiceCIDR{small, large},
			[]*networkingv1.IPAddress{inside}, false},
		"larger, smaller has": {large, []*networkingv1.ServiceCIDR{small, large},
			[]*networkingv1.IPAddress{inside}, false},
		"larger, one outside": {large, []*networkingv1.ServiceCIDR{small, large},
			[]*networkingv1.IPAddress{entry("10.0.2.5", service("d"))}, true},
		"no address":         {small, []*networkingv1.ServiceCIDR{small}, nil, false},
		"not a service's":    {small, []*networkingv1.ServiceCIDR{small}, []*networkingv1.IPAddress{foreign}, false},
		"one family covered": {both, []*networkingv1.ServiceCIDR{both, large}, []*networkingv1.IPAddress{six}, true},
	} {
		if got := needed(c.of, c.all, c.addresses); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestGives(t *testing.T) {
	c := cidr("x", "192.0.2.0/24", "fd00::/112")
	for ip, want := range map[string]bool{
		"192.0.2.1": true, "192.0.2.254": true, "192.0.2.0": false, "192.0.2.255": false, "192.0.3.1": false,
		"fd00::": false, "fd00::1": true, "fd00::ffff": true,
	} {
		if got := gives(c, netip.MustParseAddr(ip)); got != want {
			t.Errorf("%s: %v", ip, got)
		}
	}
}

// One address, one IPAddress of its Service.
func TestCheck(t *testing.T) {
	a, b := service("a"), service("b")
	bare, foreign, gateway := entry("10.0.0.1", a), entry("10.0.0.1", b), entry("10.0.0.1", a)
	bare.Labels = nil
	gateway.Spec.ParentRef.Resource = "gateways"
	for name, c := range map[string]struct {
		address *networkingv1.IPAddress
		holders []*corev1.Service
		owner   *corev1.Service
		want    repair
	}{
		"in order":            {entry("10.0.0.1", a), []*corev1.Service{a}, a, fine},
		"none":                {nil, nil, nil, fine},
		"missing":             {nil, []*corev1.Service{a, b}, a, missing},
		"of another":          {foreign, []*corev1.Service{a}, a, wrong},
		"of a gateway":        {gateway, []*corev1.Service{a}, a, wrong},
		"without labels":      {bare, []*corev1.Service{a}, a, wrong},
		"shared, the younger": {foreign, []*corev1.Service{a, b}, b, fine},
		"orphan":              {entry("10.0.0.1", a), nil, nil, orphan},
		"someone's own":       {bare, nil, nil, fine},
	} {
		if owner, got := check(c.address, c.holders); got != c.want || owner != c.owner {
			t.Errorf("%s: %v %v", name, owner, got)
		}
	}
}

func TestCondition(t *testing.T) {
	c := withCondition(cidr("x", "192.0.2.0/24"), readyCondition)
	if c == nil || withCondition(c, readyCondition) != nil {
		t.Error("ready is not set once")
	}
	c = withCondition(c, terminatingCondition)
	if c == nil || c.Status.Conditions[0].Status != metav1.ConditionFalse ||
		withCondition(c, terminatingCondition) != nil {
		t.Errorf("terminating: %+v", c)
	}
}
