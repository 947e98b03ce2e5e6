package networking

import (
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

var groupVersion = networkingv1.SchemeGroupVersion

// Kinds lists the kinds of the group.
func Kinds() []kind.Kind {
	return []kind.Kind{ingress(), ingressClass(), ipAddress(), networkPolicy(), serviceCIDR()}
}
