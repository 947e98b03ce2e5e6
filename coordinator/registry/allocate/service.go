package allocate

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// HasNodePorts tells whether a Service of this type is given node ports.
func HasNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// NeedsHealthPort tells whether a Service is given a node port that load
// balancers ask for a node's health.
func NeedsHealthPort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// IsHeadless tells whether a Service is to have no address.
func IsHeadless(s *corev1.Service) bool {
	return len(s.Spec.ClusterIPs) == 1 && s.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

// addressesOf are the cluster IPs of a service that has any.
func addressesOf(s *corev1.Service) (out []netip.Addr) {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	for _, text := range s.Spec.ClusterIPs {
		if ip, err := netip.ParseAddr(text); err == nil { // not None
			out = append(out, ip)
		}
	}
	return out
}

// healthPortOf is the port that load balancers ask for a node's health, 0: none.
func healthPortOf(s *corev1.Service) int32 {
	if s == nil || !NeedsHealthPort(s) {
		return 0
	}
	return s.Spec.HealthCheckNodePort
}

// portsOf are the node ports that a service holds, its health port included.
func portsOf(s *corev1.Service) (out []int32) {
	if s == nil || !HasNodePorts(s) {
		return nil
	}
	for i := range s.Spec.Ports {
		out = append(out, s.Spec.Ports[i].NodePort)
	}
	out = append(out, healthPortOf(s))
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(port int32) bool { return port == 0 })
}
