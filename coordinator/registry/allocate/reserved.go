package allocate

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
// must not take those of other Services, of pods and of nodes with
// spec.externalIPs (CVE-2020-8554). Upstream's API takes them. On a node's address
// a Service would answer in the place of what listens there, its SSH server for
// one, or of others' NodePorts and host ports.
type reservedRanges struct {
	services, pods []netip.Prefix
	more           func(ctx context.Context, fresh bool) ([]netip.Prefix, error) // of ServiceCIDRs
	nodes          lister[*corev1.NodeList]
}

// refuse checks the external addresses that old does not have: an object from
// before can still be changed.
func (r *reservedRanges) refuse(ctx context.Context, s, old *corev1.Service) (errs field.ErrorList) {
	p := field.NewPath("spec", "externalIPs")
	var own *ownAddresses // read once, if there is a new address
	for i, text := range s.Spec.ExternalIPs {
		a, err := netip.ParseAddr(text)
		if err != nil || old != nil && slices.Contains(old.Spec.ExternalIPs, text) {
			continue // validation tells of the former
		}
		if own == nil {
			own = &ownAddresses{services: r.serviceRanges(ctx), pods: r.pods, nodes: r.nodeAddresses(ctx)}
		}
		if why := own.has(a.Unmap()); why != "" {
			errs = append(errs, field.Invalid(p.Index(i), text, why))
		}
	}
	return errs
}

// ownAddresses are the cluster's addresses at one moment.
type ownAddresses struct {
	services, pods []netip.Prefix
	nodes          map[netip.Addr]bool
}

// has tells what an address is already; "" for nothing.
func (o *ownAddresses) has(a netip.Addr) string {
	for _, kind := range []struct {
		name   string
		ranges []netip.Prefix
	}{{"services", o.services}, {"pods", o.pods}} {
		if in := slices.IndexFunc(kind.ranges, func(c netip.Prefix) bool { return c.Contains(a) }); in >= 0 {
			return fmt.Sprintf("may not be in the cluster's range of %s (%s)", kind.name, kind.ranges[in])
		}
	}
	if o.nodes[a] {
		return "may not be an address of a node; use a Service of type NodePort or LoadBalancer"
	}
	return ""
}

func (r *reservedRanges) nodeAddresses(ctx context.Context) map[netip.Addr]bool {
	list, err := r.nodes(ctx, false)
	if err != nil {
		utilruntime.HandleError(fmt.Errorf("list nodes for their addresses: %w", err)) // the agents check them too
		return nil
	}
	out := map[netip.Addr]bool{}
	for i := range list.Items {
		for _, a := range list.Items[i].Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil { // else a name
				out[ip.Unmap()] = true
			}
		}
	}
	return out
}

func (r *reservedRanges) serviceRanges(ctx context.Context) []netip.Prefix {
	more, err := r.more(ctx, false)
	if err != nil {
		utilruntime.HandleError(fmt.Errorf("list service ranges: %w", err)) // the configured ones are checked
	}
	return slices.Concat(r.services, more)
}
