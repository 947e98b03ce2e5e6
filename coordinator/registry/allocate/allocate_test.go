package allocate

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func dualStack() *Allocator {
	b := newBook("10.0.0.0/24", "fd00::/112")
	b.services = []corev1.Service{{Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, ClusterIPs: []string{"10.0.0.1"}, Ports: []corev1.ServicePort{{NodePort: 30000}},
	}}}
	return b.allocator()
}

func allocate(t *testing.T, a *Allocator, s, old *corev1.Service) error {
	t.Helper()
	finish, err := a.Begin(context.Background(), s, old, false)
	if err == nil {
		finish(context.Background(), true)
	}
	return err
}

func TestDualStackService(t *testing.T) {
	a := dualStack()
	require, single := corev1.IPFamilyPolicyRequireDualStack, corev1.IPFamilyPolicySingleStack
	s := &corev1.Service{Spec: corev1.ServiceSpec{IPFamilyPolicy: &require, Ports: []corev1.ServicePort{{Port: 1}}}}
	if err := allocate(t, a, s, nil); err != nil {
		t.Fatal(err)
	}
	if len(s.Spec.ClusterIPs) != 2 || familyOf(s.Spec.ClusterIPs[1]) != corev1.IPv6Protocol ||
		s.Spec.ClusterIP != s.Spec.ClusterIPs[0] {
		t.Fatalf("%+v", s.Spec)
	}
	if errs := ValidateClusterIPs(s, nil); len(errs) > 0 {
		t.Error(errs)
	}
	second := s.Spec.ClusterIPs[1]
	next := s.DeepCopy()
	next.Spec.IPFamilyPolicy = &single
	if err := allocate(t, a, next, s); err != nil {
		t.Fatal(err)
	}
	if len(next.Spec.ClusterIPs) != 1 || next.Spec.ClusterIP != s.Spec.ClusterIP || len(ValidateClusterIPs(next, s)) > 0 {
		t.Fatalf("%+v %v", next.Spec, ValidateClusterIPs(next, s))
	}
	if _, held := a.addresses.book.(*book).addresses[netip.MustParseAddr(second)]; held {
		t.Errorf("%s was not given back", second)
	}
}

func TestAllocationLearnsStored(t *testing.T) {
	a := dualStack()
	s := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Port: 1}}}}
	if err := allocate(t, a, s, nil); err == nil || !strings.Contains(err.Error(), "provided IP is already allocated") {
		t.Errorf("address of a stored service: %v", err)
	}
	for i := range 9 { // ten ports, one is stored
		s := &corev1.Service{
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 1}}}}
		if err := allocate(t, a, s, nil); err != nil || s.Spec.Ports[0].NodePort == 30000 {
			t.Fatalf("port %d: %v %v", i, s.Spec.Ports, err)
		}
	}
	s = &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 1}}}}
	if err := allocate(t, a, s, nil); err == nil || !strings.Contains(err.Error(), "failed to allocate a nodePort: range is full") {
		t.Errorf("full range: %v", err)
	}
}

// Ports that differ in their protocol alone share a number; what load balancers ask
// for a node's health has one of its own.
func TestOwnPortTwice(t *testing.T) {
	service := func(change func(*corev1.ServiceSpec)) *corev1.Service {
		s := &corev1.Service{Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			HealthCheckNodePort: 30001, Ports: []corev1.ServicePort{{Port: 1, NodePort: 30002}},
		}}
		if change != nil {
			change(&s.Spec)
		}
		return s
	}
	healthIsPort := func(s *corev1.ServiceSpec) { s.HealthCheckNodePort = 30002 }
	withoutHealth := func(s *corev1.ServiceSpec) {
		s.ExternalTrafficPolicy, s.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyCluster, 0
	}
	second := func(port int32) func(*corev1.ServiceSpec) {
		return func(s *corev1.ServiceSpec) {
			s.Ports = append(s.Ports, corev1.ServicePort{Port: port, NodePort: 30002, Protocol: corev1.ProtocolUDP})
		}
	}
	for _, c := range []struct {
		name   string
		old    *corev1.Service
		change func(*corev1.ServiceSpec)
		want   string
	}{
		{"different", nil, nil, ""},
		{"two protocols of a port", nil, second(1), ""},
		{"two ports", nil, second(2), "spec.ports[1].nodePort: Invalid value: 30002: provided port is already allocated"},
		{"health is a port", nil, healthIsPort,
			"failed to allocate requested HealthCheck NodePort 30002: provided port is already allocated"},
		{"update, as it was", service(nil), nil, ""},
		{"update, a second protocol", service(nil), second(2), ""},
		{"update, health is a port that was there", service(withoutHealth), healthIsPort,
			"failed to allocate requested HealthCheck NodePort 30002: provided port is already allocated"},
	} {
		a := dualStack()
		if c.old != nil {
			if err := allocate(t, a, c.old, nil); err != nil {
				t.Fatalf("%s: the old one: %v", c.name, err)
			}
		}
		s := service(c.change)
		if c.old != nil {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = c.old.Spec.ClusterIP, c.old.Spec.ClusterIPs
		}
		err := allocate(t, a, s, c.old)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
