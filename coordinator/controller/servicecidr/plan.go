package servicecidr

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	finalizer = "networking.k8s.io/service-cidr-finalizer"
	// manager is upstream's mark of IPAddresses that follow Services.
	manager = "ipallocator.k8s.io"
	// Default is the range that the API's own Service is of.
	Default = "kubernetes"
)

var (
	readyCondition = metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Message: "Kubernetes Service CIDR is ready",
	}
	terminatingCondition = metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionFalse,
		Reason:  networkingv1.ServiceCIDRReasonTerminating,
		Message: "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
	}
)

// prefixes are the ranges of a ServiceCIDR.
func prefixes(c *networkingv1.ServiceCIDR) (out []netip.Prefix) {
	for _, text := range c.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// gives tells whether a ServiceCIDR may give out an address.
func gives(c *networkingv1.ServiceCIDR, ip netip.Addr) bool {
	return slices.ContainsFunc(prefixes(c), func(p netip.Prefix) bool {
		if !p.Contains(ip) || ip == p.Addr() {
			return false
		}
		return !ip.Is4() || p.Bits() > 30 || p.Contains(ip.Next()) // else it is the broadcast address
	})
}

// overlap tells whether two ServiceCIDRs have addresses in common.
func overlap(a, b *networkingv1.ServiceCIDR) bool {
	return slices.ContainsFunc(prefixes(a), func(p netip.Prefix) bool {
		return slices.ContainsFunc(prefixes(b), p.Overlaps)
	})
}

// needed tells whether an address would be of no range without c.
func needed(c *networkingv1.ServiceCIDR, all []*networkingv1.ServiceCIDR, addresses []*networkingv1.IPAddress) bool {
	others := slices.DeleteFunc(slices.Clone(all), func(o *networkingv1.ServiceCIDR) bool { return o.Name == c.Name })
	covered := func(p netip.Prefix) bool {
		return slices.ContainsFunc(others, func(o *networkingv1.ServiceCIDR) bool {
			return slices.ContainsFunc(prefixes(o),
				func(q netip.Prefix) bool { return q.Overlaps(p) && q.Bits() <= p.Bits() })
		})
	}
	mine := prefixes(c)
	if len(mine) > 0 && !slices.ContainsFunc(mine, func(p netip.Prefix) bool { return !covered(p) }) {
		return false
	}
	return slices.ContainsFunc(addresses, func(a *networkingv1.IPAddress) bool {
		ip, err := netip.ParseAddr(a.Name)
		if err != nil || !managed(a) || !gives(c, ip) {
			return false
		}
		return !slices.ContainsFunc(others, func(o *networkingv1.ServiceCIDR) bool { return gives(o, ip) })
	})
}

// withCondition returns c with a condition, nil if it has it already.
func withCondition(c *networkingv1.ServiceCIDR, want metav1.Condition) *networkingv1.ServiceCIDR {
	have := meta.FindStatusCondition(c.Status.Conditions, want.Type)
	if have != nil && have.Status == want.Status && have.Reason == want.Reason &&
		// the default range is ready in other words
		(have.Message == want.Message || want.Status == metav1.ConditionTrue) {
		return nil
	}
	c = c.DeepCopy()
	meta.SetStatusCondition(&c.Status.Conditions, want)
	return c
}

func managed(a *networkingv1.IPAddress) bool { return a.Labels[networkingv1.LabelManagedBy] == manager }

func ofService(a *networkingv1.IPAddress) bool {
	r := a.Spec.ParentRef
	return r != nil && r.Group == "" && r.Resource == "services"
}

func isOf(a *networkingv1.IPAddress, s *corev1.Service) bool {
	return ofService(a) && a.Spec.ParentRef.Namespace == s.Namespace && a.Spec.ParentRef.Name == s.Name
}

func family(ip string) corev1.IPFamily {
	if strings.Contains(ip, ":") {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// entry is the IPAddress of a Service's address.
func entry(ip string, s *corev1.Service) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip, Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(family(ip)), networkingv1.LabelManagedBy: manager,
		}},
		Spec: networkingv1.IPAddressSpec{
			ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: s.Namespace, Name: s.Name}},
	}
}

// repair is what one address needs.
type repair int

const (
	fine    repair = iota
	missing        // the Service's IPAddress is to be made
	wrong          // it is to be made anew: it is another's, or lacks its labels
	orphan         // no Service has the address; it is to be deleted if that stays so
)

// check compares an address's IPAddress, nil for none, with the Services that
// have the address, the oldest first. owner is whose it has to be.
func check(a *networkingv1.IPAddress, holders []*corev1.Service) (owner *corev1.Service, r repair) {
	if len(holders) == 0 {
		if a != nil && managed(a) {
			return nil, orphan
		}
		return nil, fine
	}
	if a == nil {
		return holders[0], missing
	}
	owner = holders[0]
	if i := slices.IndexFunc(holders, func(s *corev1.Service) bool { return isOf(a, s) }); i >= 0 {
		owner = holders[i]
	} else {
		return owner, wrong
	}
	if !managed(a) || a.Labels[networkingv1.LabelIPAddressFamily] != string(family(a.Name)) {
		return owner, wrong
	}
	return owner, fine
}
