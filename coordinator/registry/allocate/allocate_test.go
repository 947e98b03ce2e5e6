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
