package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// denyExternalIPs lets no Service take an external address that it does not have
// already (CVE-2020-8554).
type denyExternalIPs struct{ *admission.Handler }

func newDenyExternalIPs() denyExternalIPs {
	return denyExternalIPs{admission.NewHandler(admission.Create, admission.Update)}
}

// Validate compares with what the Service had.
func (denyExternalIPs) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("services") || a.GetSubresource() != "" {
		return nil
	}
	service, ok := a.GetObject().(*corev1.Service)
	if !ok {
		return nil
	}
	var had []string
	if old, ok := a.GetOldObject().(*corev1.Service); ok {
		had = old.Spec.ExternalIPs
	}
	for _, ip := range service.Spec.ExternalIPs {
		if !slices.Contains(had, ip) {
			return forbid(a, "Use of external IPs is denied by admission control")
		}
	}
	return nil
}
