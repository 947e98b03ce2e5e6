package core

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

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
	errs = append(errs,
		validateExtendedClaim(s.ExtendedResourceClaimStatus, &p.Spec, at.Child("extendedResourceClaimStatus"))...)
	errs = append(errs, validatePodAddresses(s, was, at)...)
	return append(errs, validateContainerStatuses(p, at)...)
}

// validateContainerStatuses checks who the containers run as, and what of devices
// they have.
func validateContainerStatuses(p *corev1.Pod, at *field.Path) (errs field.ErrorList) {
	s := &p.Status
	lists := []struct {
		name       string
		statuses   []corev1.ContainerStatus
		containers []corev1.Container
	}{
		{"containerStatuses", s.ContainerStatuses, p.Spec.Containers},
		{"initContainerStatuses", s.InitContainerStatuses, p.Spec.InitContainers},
		{"ephemeralContainerStatuses", s.EphemeralContainerStatuses, nil},
	}
	windows := p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows
	for _, l := range lists {
		for i := range l.statuses {
			user := at.Child(l.name).Index(i).Child("user", "linux")
			switch u := l.statuses[i].User; {
			case u == nil || u.Linux == nil:
			case windows:
				errs = append(errs, field.Forbidden(user, "cannot be set for a windows pod"))
			default:
				errs = append(errs, validateLinuxUser(u.Linux, user)...)
			}
		}
	}
	for _, l := range lists {
		for i := range l.statuses {
			devices := at.Child(l.name).Index(i).Child("allocatedResourcesStatus")
			if l.name == "ephemeralContainerStatuses" && len(l.statuses[i].AllocatedResourcesStatus) > 0 {
				errs = append(errs, field.Forbidden(devices, "must not be specified in container status"))
				continue
			}
			errs = append(errs, validateDeviceHealth(&l.statuses[i], l.containers, devices)...)
		}
	}
	return errs
}

func validateLinuxUser(u *corev1.LinuxContainerUser, p *field.Path) field.ErrorList {
	errs := fieldrule.Invalid(p.Child("uid"), u.UID, validation.IsValidUserID(u.UID))
	errs = append(errs, fieldrule.Invalid(p.Child("gid"), u.GID, validation.IsValidGroupID(u.GID))...)
	for i, gid := range u.SupplementalGroups {
		errs = append(errs,
			fieldrule.Invalid(p.Child("supplementalGroups").Index(i), gid, validation.IsValidGroupID(gid))...)
	}
	return errs
}

var healths = []corev1.ResourceHealthStatus{corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy,
	corev1.ResourceHealthStatusUnknown}

// validateDeviceHealth checks what is said of a container's devices: a status is
// of a resource that it asks for, or of a claim. Of a container that the spec does
// not know, nothing is known.
func validateDeviceHealth(s *corev1.ContainerStatus, containers []corev1.Container,
	p *field.Path) (errs field.ErrorList) {
	known := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == s.Name })
	for i, a := range s.AllocatedResourcesStatus {
		if known >= 0 {
			errs = append(errs, validateAsked(a.Name, &containers[known].Resources, p.Index(i).Child("name"))...)
		}
		seen := map[corev1.ResourceID]bool{}
		for j, r := range a.Resources {
			at := p.Index(i).Child("resources").Index(j)
			if !slices.Contains(healths, r.Health) {
				errs = append(errs, field.NotSupported(at.Child("health"), r.Health, healths))
			}
			if r.Message != nil && *r.Message == "" {
				errs = append(errs, field.Required(at.Child("message"), "must be non-empty if specified"))
			} else if r.Message != nil && len(*r.Message) > corev1.ResourceHealthMessageMaxLength {
				errs = append(errs,
					field.TooLong(at.Child("message"), *r.Message, corev1.ResourceHealthMessageMaxLength))
			}
			if seen[r.ResourceID] {
				errs = append(errs, field.Duplicate(at.Child("resourceID"), r.ResourceID))
			}
			seen[r.ResourceID] = true
		}
	}
	return errs
}

// validateAsked wants the name of a resource of the container, or "claim:NAME" or
// "claim:NAME/REQUEST" of one of its claims.
func validateAsked(name corev1.ResourceName, r *corev1.ResourceRequirements, p *field.Path) field.ErrorList {
	if !strings.HasPrefix(string(name), "claim:") {
		if _, ok := r.Requests[name]; ok {
			return nil
		}
		return field.ErrorList{field.Invalid(p, name, "must match one of the container's resource requests")}
	}
	for _, c := range r.Claims {
		claim := "claim:" + c.Name
		if c.Request != "" {
			claim += "/" + c.Request
		}
		if claim == string(name) {
			return nil
		}
	}
	return field.ErrorList{field.Invalid(p, name, "must match one of the container's resource claims in a format "+
		"'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty")}
}

// validateExtendedClaim checks the claim that was made for extended resources of
// the pod's containers (KEP-5004).
func validateExtendedClaim(s *corev1.PodExtendedResourceClaimStatus, spec *corev1.PodSpec,
	p *field.Path) (errs field.ErrorList) {
	if s == nil {
		return nil
	}
	containers := map[string]*corev1.Container{}
	for i := range spec.InitContainers {
		containers[spec.InitContainers[i].Name] = &spec.InitContainers[i]
	}
	for i := range spec.Containers {
		containers[spec.Containers[i].Name] = &spec.Containers[i]
	}
	mappings := p.Child("requestMappings")
	if len(s.RequestMappings) == 0 {
		errs = append(errs, field.Required(mappings, "at least one request mapping is required"))
	}
	for i, m := range s.RequestMappings {
		at := mappings.Index(i)
		if c := containers[m.ContainerName]; c == nil {
			errs = append(errs, field.Invalid(at.Child("containerName"), m.ContainerName,
				"must match the name of an entry in spec.initContainers.name or spec.containers.name"))
		} else if _, ok := c.Resources.Requests[corev1.ResourceName(m.ResourceName)]; !ok {
			errs = append(errs, field.Invalid(at.Child("resourceName"), m.ResourceName, "must match the extended resource name "+
				"of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests"))
		}
		errs = append(errs,
			fieldrule.Invalid(p.Child("requestName"), m.RequestName, validation.IsDNS1123Label(m.RequestName))...)
		if slices.Contains(s.RequestMappings[:i], m) {
			errs = append(errs, field.Duplicate(at.Child("containerName"), m.ContainerName),
				field.Duplicate(at.Child("resourceName"), m.ResourceName),
				field.Duplicate(at.Child("requestName"), m.RequestName))
		}
	}
	if s.ResourceClaimName == "" {
		return append(errs, field.Required(p.Child("resourceClaimName"), ""))
	}
	return append(errs, subdomain(s.ResourceClaimName, p.Child("resourceClaimName"))...)
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

// podAddresses are a status's addresses of the pod and of its host.
func podAddresses(s *corev1.PodStatus) (pods, hosts []string) {
	for i := range s.PodIPs {
		pods = append(pods, s.PodIPs[i].IP)
	}
	for i := range s.HostIPs {
		hosts = append(hosts, s.HostIPs[i].IP)
	}
	return pods, hosts
}

func validatePodAddresses(s, old *corev1.PodStatus, p *field.Path) (errs field.ErrorList) {
	pods, hosts := podAddresses(s)
	oldPods, oldHosts := podAddresses(old)
	errs = append(errs, validateAddressPair(pods, oldPods, s.PodIPs, p.Child("podIPs"))...)
	if len(hosts) > 0 && hosts[0] != s.HostIP {
		errs = append(errs, field.Invalid(p.Child("hostIPs").Index(0).Child("ip"), hosts[0], "must be equal to `hostIP`"))
	}
	return append(errs, validateAddressPair(hosts, oldHosts, s.HostIPs, p.Child("hostIPs"))...)
}

// validateAddressPair takes one address, or two of both families; those in old stay.
func validateAddressPair(ips, old []string, shown any, p *field.Path) (errs field.ErrorList) {
	for i, ip := range ips {
		errs = append(errs, validation.IsValidIPForLegacyField(p.Index(i), ip, true, old)...)
	}
	if len(ips) < 2 {
		return errs
	}
	both, err := netutils.IsDualStackIPStrings(ips)
	if err != nil {
		errs = append(errs, field.InternalError(p, fmt.Errorf("failed to check for dual stack with error:%w", err)))
	}
	if !both || len(ips) > 2 {
		errs = append(errs, field.Invalid(p, shown, "may specify no more than one IP for each IP family"))
	}
	return errs
}
