package allocate

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

// carryOver gives an update what the client left out because it is given, and
// makes the fields that say one thing twice agree.
func carryOver(v, old *corev1.Service) {
	if old == nil {
		syncClusterIPs(&v.Spec, nil)
		return
	}
	keepAllocated(v, old)
	syncClusterIPs(&v.Spec, &old.Spec)
}

// syncClusterIPs makes clusterIPs follow clusterIP for clients that know only
// the latter.
func syncClusterIPs(s, old *corev1.ServiceSpec) {
	if old == nil {
		if s.ClusterIP != "" && len(s.ClusterIPs) == 0 {
			s.ClusterIPs = []string{s.ClusterIP}
		}
		return
	}
	if len(old.ClusterIPs) > 0 && len(s.ClusterIPs) == 0 && old.ClusterIP == s.ClusterIP {
		s.ClusterIPs = slices.Clone(old.ClusterIPs)
	}
	if old.ClusterIP == s.ClusterIP || !slices.Equal(old.ClusterIPs, s.ClusterIPs) {
		return
	}
	s.ClusterIPs = nil
	if s.ClusterIP != "" {
		s.ClusterIPs = []string{s.ClusterIP}
	}
}

// keepAllocated gives an update the values of the old service that it left
// out, so that the manifest that made the service can be applied again.
func keepAllocated(v, old *corev1.Service) {
	s, o := &v.Spec, &old.Spec
	if o.Type != corev1.ServiceTypeExternalName && s.Type != corev1.ServiceTypeExternalName {
		if s.ClusterIP == "" {
			s.ClusterIP = o.ClusterIP
		}
		if len(s.ClusterIPs) == 0 { // of another clusterIP, syncClusterIPs makes them
			s.ClusterIPs = slices.Clone(o.ClusterIPs)
		}
	}
	if HasNodePorts(old) && HasNodePorts(v) {
		keepNodePorts(s.Ports, o.Ports)
	}
	if NeedsHealthPort(old) && NeedsHealthPort(v) && s.HealthCheckNodePort == 0 {
		s.HealthCheckNodePort = o.HealthCheckNodePort
	}
}

func keepNodePorts(ports, old []corev1.ServicePort) {
	used, byName := map[int32]bool{}, map[string]int32{}
	for _, p := range ports {
		used[p.NodePort] = true
	}
	for _, p := range old {
		byName[p.Name] = p.NodePort
	}
	for i := range ports {
		if was := byName[ports[i].Name]; ports[i].NodePort == 0 && was != 0 && !used[was] {
			ports[i].NodePort = was
			used[was] = true
		}
	}
}

// chooseFamilies fills ipFamilyPolicy and ipFamilies; configured are the
// cluster's families, the primary first (KEP-563).
func chooseFamilies(v, old *corev1.Service, configured []corev1.IPFamily) error {
	s := &v.Spec
	if s.Type == corev1.ServiceTypeExternalName || keepsPreferred(v, old) {
		return nil
	}
	if s.IPFamilyPolicy == nil {
		policy := corev1.IPFamilyPolicySingleStack
		switch {
		case old != nil && old.Spec.IPFamilyPolicy != nil:
			policy = *old.Spec.IPFamilyPolicy
		case s.ClusterIP == corev1.ClusterIPNone && len(s.Selector) == 0:
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
		s.IPFamilyPolicy = &policy
	}
	errs := ValidateClusterIPs(v, old)
	if len(errs) == 0 {
		errs = reduceFamilies(v, old)
	}
	if len(errs) == 0 {
		errs = inferFamilies(s, configured)
	}
	if len(errs) > 0 {
		return invalidService(v, errs)
	}
	if s.ClusterIP == corev1.ClusterIPNone && len(s.Selector) == 0 {
		// Nobody but the user knows the endpoints' families.
		addFamilies(s, configured[0], true)
		return nil
	}
	if errs := validateFamilies(s, configured); len(errs) > 0 {
		return invalidService(v, errs)
	}
	addFamilies(s, configured[0], len(configured) > 1)
	return nil
}

func invalidService(v *corev1.Service, errs field.ErrorList) error {
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), v.Name, errs)
}

// keepsPreferred: a PreferDualStack service never gains or loses a family by
// itself when the cluster's families change.
func keepsPreferred(v, old *corev1.Service) bool {
	if old == nil || old.Spec.Type == corev1.ServiceTypeExternalName || len(old.Spec.IPFamilies) == 0 {
		return false
	}
	s, o := &v.Spec, &old.Spec
	prefer := corev1.IPFamilyPolicyPreferDualStack
	return ptr.Deref(o.IPFamilyPolicy, "") == prefer && ptr.Deref(s.IPFamilyPolicy, "") == prefer &&
		s.ClusterIP == o.ClusterIP &&
		slices.Equal(s.ClusterIPs, o.ClusterIPs) && slices.Equal(s.IPFamilies, o.IPFamilies)
}

func reduceFamilies(v, old *corev1.Service) (errs field.ErrorList) {
	s, p := &v.Spec, field.NewPath("spec", "ipFamilyPolicy")
	single := *s.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
	if old != nil {
		o := &old.Spec
		switch {
		case single:
			if slices.Equal(s.ClusterIPs, o.ClusterIPs) && len(s.ClusterIPs) > 1 {
				s.ClusterIPs = s.ClusterIPs[:1]
			}
			if slices.Equal(s.IPFamilies, o.IPFamilies) && len(s.IPFamilies) > 1 {
				s.IPFamilies = s.IPFamilies[:1]
			}
		case len(s.ClusterIPs) == 1 && len(o.ClusterIPs) == 2 && s.ClusterIPs[0] == o.ClusterIPs[0]:
			errs = append(errs, field.Invalid(p, s.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP"))
		case len(s.IPFamilies) == 1 && len(o.IPFamilies) == 2 && s.IPFamilies[0] == o.IPFamilies[0]:
			errs = append(errs, field.Invalid(p, s.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family"))
		}
	}
	if single && len(s.ClusterIPs) == 2 {
		errs = append(errs, field.Invalid(p, s.IPFamilyPolicy, "must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"))
	}
	if single && len(s.IPFamilies) == 2 {
		errs = append(errs, field.Invalid(p, s.IPFamilyPolicy, "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"))
	}
	return errs
}

// inferFamilies takes missing families from the addresses.
func inferFamilies(s *corev1.ServiceSpec, configured []corev1.IPFamily) (errs field.ErrorList) {
	for i, ip := range s.ClusterIPs {
		if ip == corev1.ClusterIPNone || i < len(s.IPFamilies) {
			continue
		}
		f := familyOf(ip)
		if !slices.Contains(configured, f) {
			errs = append(errs,
				field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), s.ClusterIPs,
					fmt.Sprintf("%s is not configured on this cluster", f)))
			continue
		}
		s.IPFamilies = append(s.IPFamilies, f)
	}
	return errs
}

func validateFamilies(s *corev1.ServiceSpec, configured []corev1.IPFamily) (errs field.ErrorList) {
	if *s.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack && len(configured) < 2 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), s.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
	}
	for i, f := range s.IPFamilies {
		if !slices.Contains(configured, f) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilies").Index(i), f, "not configured on this cluster"))
		}
	}
	return errs
}

func addFamilies(s *corev1.ServiceSpec, primary corev1.IPFamily, dual bool) {
	if len(s.IPFamilies) == 0 {
		s.IPFamilies = []corev1.IPFamily{primary}
	}
	if !dual || len(s.IPFamilies) > 1 || *s.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack {
		return
	}
	other := corev1.IPv4Protocol
	if s.IPFamilies[0] == other {
		other = corev1.IPv6Protocol
	}
	s.IPFamilies = append(s.IPFamilies, other)
}

// ValidateClusterIPs checks clusterIP, clusterIPs, ipFamilies and
// ipFamilyPolicy against each other.
func ValidateClusterIPs(v, old *corev1.Service) (errs field.ErrorList) {
	s, p := &v.Spec, field.NewPath("spec")
	if s.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	at := p.Child("clusterIPs")
	switch {
	case s.ClusterIP == "" && len(s.ClusterIPs) > 0:
		errs = append(errs, field.Invalid(at, s.ClusterIPs, "must be empty when `clusterIP` is not specified"))
	case s.ClusterIP != "" && len(s.ClusterIPs) == 0:
		errs = append(errs, field.Required(at, ""))
	case s.ClusterIP != "" && s.ClusterIPs[0] != s.ClusterIP:
		errs = append(errs, field.Invalid(at, s.ClusterIPs, "first value must match `clusterIP`"))
	}
	seen := sets.New[corev1.IPFamily]()
	for i, f := range s.IPFamilies {
		errs = append(errs,
			podspec.Among(f, p.Child("ipFamilies").Index(i), corev1.IPv4Protocol, corev1.IPv6Protocol)...)
		if seen.Has(f) {
			errs = append(errs, field.Duplicate(p.Child("ipFamilies").Index(i), f))
		}
		seen.Insert(f)
	}
	if s.IPFamilyPolicy != nil {
		errs = append(errs, podspec.Among(*s.IPFamilyPolicy, p.Child("ipFamilyPolicy"),
			corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack,
			corev1.IPFamilyPolicySingleStack)...)
	}
	return append(errs, validateAddresses(v, old, at)...)
}

func validateAddresses(v, old *corev1.Service, p *field.Path) (errs field.ErrorList) {
	s := &v.Spec
	var had []string // which may stay as they are
	if old != nil {
		had = old.Spec.ClusterIPs
	}
	if IsHeadless(v) {
		return nil
	}
	families := sets.New[corev1.IPFamily]()
	for i, ip := range s.ClusterIPs {
		if i == 0 && ip == corev1.ClusterIPNone {
			errs = append(errs, field.Invalid(p, s.ClusterIPs, "'None' must be the first and only value"))
			continue
		}
		errs = append(errs, validation.IsValidIPForLegacyField(p.Index(i), ip, true, had)...)
		families.Insert(familyOf(ip))
	}
	bad := len(errs) > 0
	if len(s.ClusterIPs) > 2 {
		errs = append(errs, field.Invalid(p, s.ClusterIPs, "may only hold up to 2 values"))
	}
	if bad {
		return errs
	}
	if len(s.ClusterIPs) > 1 && len(families) < 2 {
		errs = append(errs, field.Invalid(p, s.ClusterIPs, "may specify no more than one IP for each IP family"))
	}
	for i, ip := range s.ClusterIPs {
		known := i < len(s.IPFamilies) &&
			(s.IPFamilies[i] == corev1.IPv4Protocol || s.IPFamilies[i] == corev1.IPv6Protocol)
		if known && familyOf(ip) != s.IPFamilies[i] {
			errs = append(errs,
				field.Invalid(p.Index(i), ip,
					fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%v]`", s.IPFamilies[i], i)))
		}
	}
	return errs
}

func familyOf(ip string) corev1.IPFamily {
	if a, err := netip.ParseAddr(ip); err == nil && a.Is6() {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}
