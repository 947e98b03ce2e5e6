package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

type quantity = resource.Quantity

// standardResources are the names without a domain that any list may hold
// (quotas and limit ranges included).
var standardResources = sets.New[corev1.ResourceName](
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
	corev1.ResourceStorage, corev1.ResourceRequestsStorage,
	corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
)

func isNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

func isHugePage(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func overcommits(name corev1.ResourceName) bool { return isNative(name) && !isHugePage(name) }

// IsExtended tells whether name is a resource of a device plugin or of a
// node's operator, counted in whole units.
func IsExtended(name corev1.ResourceName) bool {
	return !isNative(name) && !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) &&
		len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}

func wholeNumber(name corev1.ResourceName) bool {
	return IsExtended(name) || integerResources.Has(name)
}

var integerResources = sets.New[corev1.ResourceName](
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
	corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
)

// ValidateQuantity refuses a negative quantity, or one of a counted resource
// that is not whole.
func ValidateQuantity(name corev1.ResourceName, q resource.Quantity, p *field.Path) (errs field.ErrorList) {
	if q.Sign() < 0 {
		errs = append(errs, field.Invalid(p, q.String(), "must be greater than or equal to 0"))
	}
	if wholeNumber(name) && q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(p, q.String(), "must be an integer"))
	}
	return errs
}

// ValidateResourceName checks a name that any resource list may hold.
func ValidateResourceName(name corev1.ResourceName, p *field.Path) (errs field.ErrorList) {
	errs = append(errs, fieldrule.Invalid(p, name, validation.IsQualifiedName(string(name)))...)
	if len(errs) == 0 && !strings.Contains(string(name), "/") && !standardResources.Has(name) && !isStandardPrefix(name) {
		errs = append(errs, field.Invalid(p, name, "must be a standard resource type or fully qualified"))
	}
	return errs
}

func isStandardPrefix(name corev1.ResourceName) bool {
	return isHugePage(name) || strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix)
}

// ValidateContainerResourceName allows what a container may ask for.
func ValidateContainerResourceName(name corev1.ResourceName, p *field.Path) field.ErrorList {
	errs := ValidateResourceName(name, p)
	switch {
	case !strings.Contains(string(name), "/"):
		if name != corev1.ResourceCPU && name != corev1.ResourceMemory &&
			name != corev1.ResourceEphemeralStorage && !isHugePage(name) {
			errs = append(errs, field.Invalid(p, name, "must be a standard resource for containers"))
		}
	case !isNative(name) && !IsExtended(name):
		errs = append(errs, field.Invalid(p, name, "doesn't follow extended resource name standard"))
	}
	return errs
}

func podResourceName(name corev1.ResourceName, p *field.Path) field.ErrorList {
	if errs := ValidateResourceName(name, p); len(errs) > 0 {
		return errs
	}
	if !resourcehelper.IsSupportedPodLevelResource(name) {
		return field.ErrorList{field.NotSupported(p, name, sets.List(resourcehelper.SupportedPodLevelResources()))}
	}
	return nil
}

// ValidateRequirements checks the resources of one container; claims are the
// names of the pod's resource claims.
func ValidateRequirements(r *corev1.ResourceRequirements, claims sets.Set[string], p *field.Path) field.ErrorList {
	errs := validateLists(r, ValidateContainerResourceName, p)
	return append(errs, validateClaimNames(r.Claims, claims, p.Child("claims"))...)
}

type nameCheck func(corev1.ResourceName, *field.Path) field.ErrorList

func validateLists(r *corev1.ResourceRequirements, check nameCheck, p *field.Path) (errs field.ErrorList) {
	limits, requests := p.Child("limits"), p.Child("requests")
	for _, name := range sortedNames(r.Limits) {
		errs = append(errs, validateEntry(name, r.Limits[name], check, limits.Key(string(name)))...)
	}
	for _, name := range sortedNames(r.Requests) {
		q := r.Requests[name]
		errs = append(errs, validateEntry(name, q, check, requests.Key(string(name)))...)
		limit, limited := r.Limits[name]
		switch {
		case !limited && !overcommits(name):
			errs = append(errs, field.Required(limits, "Limit must be set for non overcommitable resources"))
		case limited && !overcommits(name) && q.Cmp(limit) != 0:
			errs = append(errs,
				field.Invalid(requests, q.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String())))
		case limited && q.Cmp(limit) > 0:
			errs = append(errs,
				field.Invalid(requests, q.String(),
					fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String())))
		}
	}
	if hasHugePages(r) && !hasCompute(r) {
		errs = append(errs, field.Forbidden(p, "HugePages require cpu or memory"))
	}
	return errs
}

func validateEntry(name corev1.ResourceName, q resource.Quantity, check nameCheck, p *field.Path) field.ErrorList {
	errs := append(check(name, p), ValidateQuantity(name, q, p)...)
	if isHugePage(name) {
		size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
		if err != nil || size.Value() <= 0 || q.Value()%size.Value() != 0 {
			errs = append(errs,
				field.Invalid(p, q.String(), fmt.Sprintf("%s is not positive integer multiple of %s", q.String(), name)))
		}
	}
	return errs
}

func hasHugePages(r *corev1.ResourceRequirements) bool {
	for _, list := range []corev1.ResourceList{r.Limits, r.Requests} {
		for name := range list {
			if isHugePage(name) {
				return true
			}
		}
	}
	return false
}

func hasCompute(r *corev1.ResourceRequirements) bool {
	for _, list := range []corev1.ResourceList{r.Limits, r.Requests} {
		for name := range list {
			if name == corev1.ResourceCPU || name == corev1.ResourceMemory {
				return true
			}
		}
	}
	return false
}

func sortedNames(list corev1.ResourceList) []corev1.ResourceName {
	return slices.Sorted(maps.Keys(list))
}

func validateClaimNames(claims []corev1.ResourceClaim, known sets.Set[string], p *field.Path) (errs field.ErrorList) {
	seen := sets.New[string]()
	for i, c := range claims {
		at := p.Index(i)
		if c.Name == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		key := c.Name
		if c.Request != "" {
			errs = append(errs, dnsLabel(c.Request, at.Child("request"))...)
			key += "/" + c.Request
		}
		if seen.Has(c.Name) || seen.Has(key) || c.Request == "" && seen.Has(c.Name+"/*") {
			errs = append(errs, field.Duplicate(at, key))
		}
		seen.Insert(key)
		if c.Request != "" {
			seen.Insert(c.Name + "/*")
		}
		if !known.Has(c.Name) {
			e := field.NotFound(at, c.Name)
			e.Detail = "must be one of the names in pod.spec.resourceClaims which is empty"
			if len(known) > 0 {
				e.Detail = "must be one of the names in pod.spec.resourceClaims: " + strings.Join(sets.List(known), ", ")
			}
			errs = append(errs, e)
		}
	}
	return errs
}

// validatePodLevel checks pod level resources against the containers' (KEP-2837).
func (v *scope) validatePodLevel(p *field.Path) (errs field.ErrorList) {
	s, r, at := v.spec, v.spec.Resources, p.Child("resources")
	if r == nil {
		return nil
	}
	if s.OS != nil && s.OS.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(at, "may not be set for a windows pod")}
	}
	if r.Claims != nil {
		errs = append(errs, field.Forbidden(at.Child("claims"), "claims may not be set for Resources at pod-level"))
	}
	errs = append(errs, validateLists(r, podResourceName, at)...)
	errs = append(errs, validateClaimNames(r.Claims, v.claims, at.Child("claims"))...)
	pod := &corev1.Pod{Spec: *s}
	for name, sum := range resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{}) {
		if q, set := r.Requests[name]; set && sum.Cmp(q) > 0 {
			errs = append(errs, field.Invalid(at.Child("requests").Key(string(name)), q.String(),
				"must be greater than or equal to aggregate container requests of "+sum.String()))
		}
	}
	for name, sum := range resourcehelper.AggregateContainerLimits(pod, resourcehelper.PodResourcesOptions{}) {
		if q, set := r.Limits[name]; set && isHugePage(name) && sum.Cmp(q) > 0 {
			errs = append(errs, field.Invalid(at.Child("limits").Key(string(name)), q.String(),
				"must be greater than or equal to aggregate container limits of "+sum.String()))
		}
	}
	for i := range s.Containers {
		for name, limit := range s.Containers[i].Resources.Limits {
			if q, set := r.Limits[name]; set && limit.Cmp(q) > 0 {
				errs = append(errs,
					field.Invalid(at.Child("containers").Index(i).Key(string(name)).Child("limits"), limit.String(),
						"must be less than or equal to pod limits of "+q.String()))
			}
		}
	}
	return errs
}

// QOS computes a pod's quality of service class from its spec.
func QOS(s *corev1.PodSpec) corev1.PodQOSClass {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	guaranteed := true
	if s.Resources != nil {
		guaranteed = addCompute(requests, s.Resources.Requests, limits, s.Resources.Limits)
	} else {
		Visit(s, nil, func(c *corev1.Container, _ *field.Path) {
			if !addCompute(requests, c.Resources.Requests, limits, c.Resources.Limits) {
				guaranteed = false
			}
		})
	}
	if len(requests) == 0 && len(limits) == 0 {
		return corev1.PodQOSBestEffort
	}
	for name, q := range requests {
		if limit, set := limits[name]; !set || limit.Cmp(q) != 0 {
			guaranteed = false
		}
	}
	if guaranteed && len(requests) == len(limits) {
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// addCompute sums positive cpu and memory; it reports whether both are limited.
func addCompute(requests, r, limits, l corev1.ResourceList) bool {
	both := true
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		addTo(requests, name, r[name])
		if limit := l[name]; limit.Sign() > 0 {
			addTo(limits, name, limit)
		} else {
			both = false
		}
	}
	return both
}

func addTo(sum corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	if q.Sign() <= 0 {
		return
	}
	total := sum[name]
	total.Add(q)
	sum[name] = total
}
