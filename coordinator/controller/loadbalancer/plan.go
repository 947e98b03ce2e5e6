package loadbalancer

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// waits tells whether a Service has asked for a load balancer and has none.
func waits(s *corev1.Service) bool {
	return s != nil && s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.DeletionTimestamp == nil &&
		len(s.Status.LoadBalancer.Ingress) == 0
}

// asks tells whether a change of a Service makes it wait for another load balancer
// than before.
func asks(old, s *corev1.Service) bool {
	return waits(s) && (!waits(old) ||
		ptr.Deref(old.Spec.LoadBalancerClass, "") != ptr.Deref(s.Spec.LoadBalancerClass, ""))
}

// message says what is missing, and what serves meanwhile.
func message(s *corev1.Service) string {
	by := "a load balancer"
	if class := ptr.Deref(s.Spec.LoadBalancerClass, ""); class != "" {
		by = fmt.Sprintf("one that serves the class %q", class)
	}
	other := "its cluster IP"
	if ptr.Deref(s.Spec.AllocateLoadBalancerNodePorts, true) {
		other += " and its node ports"
	}
	return fmt.Sprintf("Nobody has given this Service an external address: install %s; it answers at %s as ever",
		by, other)
}
