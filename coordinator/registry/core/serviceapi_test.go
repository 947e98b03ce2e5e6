package core_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func aService(name string, change func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

// serviceTypes walks a service through its types, as the conformance suite does.
func serviceTypes(t *testing.T, c kubernetes.Interface) {
	services := c.CoreV1().Services("default")
	s := must[*corev1.Service](t)(services.Create(ctx, aService("types", nil), create))
	if s.Spec.Type != corev1.ServiceTypeClusterIP || s.Spec.ClusterIP == "" ||
		!slices.Equal(s.Spec.IPFamilies, []corev1.IPFamily{corev1.IPv4Protocol}) ||
		*s.Spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack || s.Spec.Ports[0].TargetPort.IntValue() != 80 {
		t.Fatalf("ClusterIP: %+v", s.Spec)
	}
	ip := s.Spec.ClusterIP
	s.Spec.Type = corev1.ServiceTypeNodePort
	s = must[*corev1.Service](t)(services.Update(ctx, s, update))
	port := s.Spec.Ports[0].NodePort
	if port == 0 || s.Spec.ClusterIP != ip || s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyCluster {
		t.Fatalf("NodePort: %+v", s.Spec)
	}
	s.Spec.Ports[0].NodePort = 0 // kept, as by applying the manifest again
	s = must[*corev1.Service](t)(services.Update(ctx, s, update))
	if s.Spec.Ports[0].NodePort != port {
		t.Errorf("port %d became %d", port, s.Spec.Ports[0].NodePort)
	}
	s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
	s = must[*corev1.Service](t)(services.Update(ctx, s, update))
	if s.Spec.ClusterIP != "" || s.Spec.ClusterIPs != nil || s.Spec.Ports[0].NodePort != 0 ||
		s.Spec.IPFamilyPolicy != nil {
		t.Fatalf("ExternalName: %+v", s.Spec)
	}
	must[*corev1.Service](t)(services.Create(ctx, aService("took-both", func(s *corev1.ServiceSpec) {
		s.Type, s.ClusterIP, s.Ports[0].NodePort = corev1.ServiceTypeNodePort, ip, port
	}), create))
	s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeClusterIP, ""
	s = must[*corev1.Service](t)(services.Update(ctx, s, update))
	if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == ip {
		t.Fatalf("ClusterIP again: %+v", s.Spec)
	}
	s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.9.9", []string{"10.96.9.9"}
	_, err := services.Update(ctx, s, update)
	wantError(t, err, "spec.clusterIPs[0]: Invalid value", "may not change once set")
	h := must[*corev1.Service](t)(services.Create(ctx,
		aService("headless", func(s *corev1.ServiceSpec) { s.ClusterIP = "None" }), create))
	if !slices.Equal(h.Spec.ClusterIPs, []string{"None"}) {
		t.Errorf("headless: %+v", h.Spec)
	}
	lb := must[*corev1.Service](t)(services.Create(ctx, aService("lb", func(s *corev1.ServiceSpec) {
		s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	}), create))
	if lb.Spec.HealthCheckNodePort == 0 || lb.Spec.Ports[0].NodePort == 0 {
		t.Errorf("load balancer: %+v", lb.Spec)
	}
	lb.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	lb = must[*corev1.Service](t)(services.UpdateStatus(ctx, lb, update))
	if len(lb.Status.LoadBalancer.Ingress) != 1 ||
		*lb.Status.LoadBalancer.Ingress[0].IPMode != corev1.LoadBalancerIPModeVIP {
		t.Errorf("status: %+v", lb.Status)
	}
	both := must[*corev1.Service](t)(services.Create(ctx, aService("udp-tcp", func(s *corev1.ServiceSpec) {
		s.Type = corev1.ServiceTypeNodePort
		s.Ports = []corev1.ServicePort{{Name: "t", Port: 53}, {Name: "u", Port: 53, Protocol: corev1.ProtocolUDP}}
	}), create))
	if both.Spec.Ports[0].NodePort != both.Spec.Ports[1].NodePort {
		t.Errorf("ports of two protocols: %+v", both.Spec.Ports)
	}
}
