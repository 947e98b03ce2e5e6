package core

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// reservedRanges are the cluster's own addresses: whoever may write a Service
// must not take those of other Services and of pods with spec.externalIPs
// (CVE-2020-8554). Upstream's API takes them; no use of them is known. Addresses
// of nodes are not among them: that is what the field is for on machines
// without a load balancer.
type reservedRanges struct {
	services, pods []netip.Prefix
	more           func(ctx context.Context, fresh bool) ([]netip.Prefix, error) // of ServiceCIDRs
}

// refuse checks the external addresses that old does not have: an object from
// before can still be changed.
func (r *reservedRanges) refuse(ctx context.Context, s, old *corev1.Service) (errs field.ErrorList) {
	p := field.NewPath("spec", "externalIPs")
	for i, text := range s.Spec.ExternalIPs {
		a, err := netip.ParseAddr(text)
		if err != nil || old != nil && slices.Contains(old.Spec.ExternalIPs, text) {
			continue // validation tells of the former
		}
		for _, kind := range []struct {
			name   string
			ranges []netip.Prefix
		}{{"services", r.serviceRanges(ctx)}, {"pods", r.pods}} {
			if in := slices.IndexFunc(kind.ranges, func(c netip.Prefix) bool { return c.Contains(a.Unmap()) }); in >= 0 {
				errs = append(errs, field.Invalid(p.Index(i), text, fmt.Sprintf("may not be in the cluster's range of %s (%s)", kind.name, kind.ranges[in])))
			}
		}
	}
	return errs
}

func (r *reservedRanges) serviceRanges(ctx context.Context) []netip.Prefix {
	more, err := r.more(ctx, false)
	if err != nil {
		utilruntime.HandleError(fmt.Errorf("list service ranges: %w", err)) // the configured ones are checked
	}
	return slices.Concat(r.services, more)
}
