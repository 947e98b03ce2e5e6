package core

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

func validatePodStatus(p, old *corev1.Pod) field.ErrorList {
	at, s, was := field.NewPath("status"), &p.Status, &old.Status
	errs := validateFixedAnnotations(p, old)
	errs = append(errs, podspec.ValidateAnnotations(p.Annotations, &p.Spec, field.NewPath("metadata", "annotations"))...)
	errs = append(errs, validatePodConditions(s.Conditions, at.Child("conditions"))...)
	if p.Spec.NodeName != old.Spec.NodeName {
		errs = append(errs, field.Forbidden(at.Child("nodeName"), "may not be changed directly"))
	}
	if s.NominatedNodeName != was.NominatedNodeName && s.NominatedNodeName != "" {
		errs = append(errs, subdomain(s.NominatedNodeName, at.Child("nominatedNodeName"))...)
		if old.Spec.NodeName != "" {
			errs = append(errs, field.Forbidden(at.Child("nominatedNodeName"), "may not be set on pods that are already bound to a node"))
		}
	}
	if s.ObservedGeneration < 0 {
		errs = append(errs, field.Invalid(at.Child("observedGeneration"), s.ObservedGeneration, "must be a non-negative integer"))
	}
	errs = append(errs, immutable(s.QOSClass, was.QOSClass, at.Child("qosClass"))...)
	errs = append(errs,
		noResurrection(&old.Spec, s.ContainerStatuses, was.ContainerStatuses, at.Child("containerStatuses"))...)
	errs = append(errs,
		noResurrection(&old.Spec, s.InitContainerStatuses, was.InitContainerStatuses,
			at.Child("initContainerStatuses"))...)
	errs = append(errs,
		noResurrection(&old.Spec, s.EphemeralContainerStatuses, was.EphemeralContainerStatuses,
			at.Child("ephemeralContainerStatuses"))...)
	errs = append(errs,
		validateClaimStatuses(s.ResourceClaimStatuses, p.Spec.ResourceClaims, at.Child("resourceClaimStatuses"))...)
	return append(errs, validatePodAddresses(s, at)...)
}

func validatePodConditions(conditions []corev1.PodCondition, p *field.Path) (errs field.ErrorList) {
	for i, c := range conditions {
		if c.ObservedGeneration < 0 {
			errs = append(errs, field.Invalid(p.Index(i).Child("observedGeneration"), c.ObservedGeneration, "must be a non-negative integer"))
		}
		switch c.Type {
		case corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized:
		default:
			errs = append(errs,
				fieldrule.Invalid(p.Index(i).Child("Type"), string(c.Type),
					validation.IsQualifiedName(string(c.Type)))...)
		}
	}
	return errs
}

// noResurrection refuses to show a container as running again that its restart
// policy leaves ended. An ephemeral container never restarts.
func noResurrection(s *corev1.PodSpec, now, was []corev1.ContainerStatus, p *field.Path) (errs field.ErrorList) {
	for i := range was {
		ended := was[i].State.Terminated
		if ended == nil || restarts(s, was[i].Name, ended.ExitCode) {
			continue
		}
		for j := range now {
			if now[j].Name == was[i].Name && now[j].State.Terminated == nil {
				errs = append(errs, field.Forbidden(p.Index(i).Child("state"), "may not be transitioned to non-terminated state"))
			}
		}
	}
	return errs
}

// restarts tells whether a container may run again after it ended with code.
func restarts(s *corev1.PodSpec, name string, code int32) (yes bool) {
	for i := range s.EphemeralContainers {
		if s.EphemeralContainers[i].Name == name {
			return false
		}
	}
	podspec.Visit(s, nil, func(c *corev1.Container, _ *field.Path) {
		for _, r := range c.RestartPolicyRules {
			if r.Action == corev1.ContainerRestartRuleActionRestartAllContainers {
				yes = true
			}
		}
		if c.Name != name || yes {
			return
		}
		yes = restartsItself(s, c, code)
	})
	return yes
}

func restartsItself(s *corev1.PodSpec, c *corev1.Container, code int32) bool {
	for _, r := range c.RestartPolicyRules {
		if r.ExitCodes == nil {
			continue
		}
		in := false
		for _, v := range r.ExitCodes.Values {
			in = in || v == code
		}
		if in == (r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
			return true
		}
	}
	policy := s.RestartPolicy
	if c.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*c.RestartPolicy)
	}
	return policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && code != 0
}

func validateClaimStatuses(statuses []corev1.PodResourceClaimStatus, claims []corev1.PodResourceClaim,
	p *field.Path) (errs field.ErrorList) {
	known, seen := map[string]bool{}, map[string]bool{}
	for _, c := range claims {
		known[c.Name] = true
	}
	for i, s := range statuses {
		at := p.Index(i).Child("name")
		if !known[s.Name] {
			errs = append(errs, field.Invalid(at, s.Name, "must match the name of an entry in `spec.resourceClaims`"))
		}
		if seen[s.Name] {
			errs = append(errs, field.Duplicate(at, s.Name))
		}
		seen[s.Name] = true
		if s.ResourceClaimName != nil {
			errs = append(errs, subdomain(*s.ResourceClaimName, p.Index(i).Child("resourceClaimName"))...)
		}
	}
	return errs
}

func validatePodAddresses(s *corev1.PodStatus, p *field.Path) (errs field.ErrorList) {
	pods, hosts := make([]string, len(s.PodIPs)), make([]string, len(s.HostIPs))
	for i := range s.PodIPs {
		pods[i] = s.PodIPs[i].IP
	}
	for i := range s.HostIPs {
		hosts[i] = s.HostIPs[i].IP
	}
	if len(hosts) > 0 && hosts[0] != s.HostIP {
		errs = append(errs, field.Invalid(p.Child("hostIPs").Index(0).Child("ip"), hosts[0], "must be equal to `hostIP`"))
	}
	errs = append(errs, validateAddressPair(pods, s.PodIPs, p.Child("podIPs"))...)
	return append(errs, validateAddressPair(hosts, s.HostIPs, p.Child("hostIPs"))...)
}

func validateAddressPair(ips []string, shown any, p *field.Path) (errs field.ErrorList) {
	families := map[bool]int{}
	for i, ip := range ips {
		errs = append(errs, validation.IsValidIP(p.Index(i), ip)...)
		if a, err := netip.ParseAddr(ip); err == nil {
			families[a.Is4()]++
		}
	}
	if families[true] > 1 || families[false] > 1 {
		errs = append(errs, field.Invalid(p, shown, "may specify no more than one IP for each IP family"))
	}
	return errs
}
