package quota

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

var serviceResources = []corev1.ResourceName{
	"count/services", corev1.ResourceServices, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
}

func newServices(list generic.ListFuncByNamespace) quotav1.Evaluator {
	return &evaluator[corev1.Service]{
		resource: corev1.Resource("services"), list: list, usage: serviceUsage,
		counts: func(name corev1.ResourceName) bool { return slices.Contains(serviceResources, name) },
		// A service's type may change.
		charged: func(a admission.Attributes) bool { return onObject(a, true) },
	}
}

// serviceUsage counts node ports by what the service wants: it is charged
// before it gets them.
func serviceUsage(s *corev1.Service) corev1.ResourceList {
	balancers, ports := 0, 0
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		ports = len(s.Spec.Ports)
	case corev1.ServiceTypeLoadBalancer:
		balancers, ports = 1, len(s.Spec.Ports)
		if a := s.Spec.AllocateLoadBalancerNodePorts; a != nil && !*a {
			ports = named(s.Spec.Ports)
		}
	}
	return corev1.ResourceList{
		"count/services": count(1), corev1.ResourceServices: count(1),
		corev1.ResourceServicesLoadBalancers: count(balancers), corev1.ResourceServicesNodePorts: count(ports),
	}
}

func named(ports []corev1.ServicePort) (n int) {
	for i := range ports {
		if ports[i].NodePort != 0 {
			n++
		}
	}
	return n
}

// ServiceChanged tells whether a service's update may change what it takes.
func ServiceChanged(old, s *corev1.Service) bool {
	return !quotav1.Equals(serviceUsage(old), serviceUsage(s))
}
