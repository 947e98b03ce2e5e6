package podspec

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// scope is what the checks of one pod spec share.
type scope struct {
	spec    *corev1.PodSpec
	meta    *metav1.ObjectMeta // nil in a template
	volumes map[string]*corev1.VolumeSource
	claims  sets.Set[string]
	// grace is spec.terminationGracePeriodSeconds, nil when it is missing.
	grace *int64
}

func (s *scope) inPod() bool { return s.meta != nil }

// Validate checks a pod's spec; meta is the pod's own, nil for a template. Causes come in
// upstream's order.
func Validate(spec *corev1.PodSpec, meta *metav1.ObjectMeta, p *field.Path) (errs field.ErrorList) {
	s := &scope{spec: spec, meta: meta, grace: spec.TerminationGracePeriodSeconds, claims: sets.New[string]()}
	for _, c := range spec.ResourceClaims {
		if c.Name != "" {
			s.claims.Insert(c.Name)
		}
	}
	if s.grace == nil {
		errs = append(errs, field.Required(p.Child("terminationGracePeriodSeconds"), ""))
	}
	errs = append(errs, s.validateVolumes(p.Child("volumes"))...)
	errs = append(errs, s.validateResourceClaims(p.Child("resourceClaims"))...)
	errs = append(errs, s.validateContainers(p)...)
	errs = append(errs, s.validatePodLevel(p)...)
	errs = append(errs, s.validateHostPorts(p.Child("containers"))...)
	errs = append(errs, OneOf(spec.RestartPolicy, p.Child("restartPolicy"), corev1.RestartPolicyAlways,
		corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)...)
	errs = append(errs, OneOf(spec.DNSPolicy, p.Child("dnsPolicy"), corev1.DNSClusterFirstWithHostNet,
		corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)...)
	errs = append(errs, metavalidation.ValidateLabels(spec.NodeSelector, p.Child("nodeSelector"))...)
	errs = append(errs, validatePodSecurity(spec, p)...)
	errs = append(errs, validateAffinity(spec.Affinity, p.Child("affinity"))...)
	errs = append(errs, validateDNS(spec, p.Child("dnsConfig"))...)
	errs = append(errs, validateGates(spec, p)...)
	errs = append(errs, validateSpread(spec.TopologySpreadConstraints, p.Child("topologySpreadConstraints"))...)
	errs = append(errs, validateHostProcess(spec, p)...)
	errs = append(errs, validateUserNamespace(spec, p)...)
	errs = append(errs, validateHostnameOverride(spec, p.Child("hostnameOverride"))...)
	errs = append(errs, optionalSubdomain(spec.ServiceAccountName, p.Child("serviceAccountName"))...)
	errs = append(errs, optionalSubdomain(spec.NodeName, p.Child("nodeName"))...)
	if d := spec.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		errs = append(errs,
			field.Invalid(p.Child("activeDeadlineSeconds"), *d, validation.InclusiveRangeError(1, math.MaxInt32)))
	}
	if spec.Hostname != "" {
		errs = append(errs, dnsLabel(spec.Hostname, p.Child("hostname"))...)
	}
	if spec.Subdomain != "" {
		errs = append(errs, dnsLabel(spec.Subdomain, p.Child("subdomain"))...)
	}
	errs = append(errs, ValidateTolerations(spec.Tolerations, p.Child("tolerations"))...)
	errs = append(errs, validateHostAliases(spec.HostAliases, p.Child("hostAliases"))...)
	errs = append(errs, optionalSubdomain(spec.PriorityClassName, p.Child("priorityClassName"))...)
	if spec.RuntimeClassName != nil {
		errs = append(errs, dnsSubdomain(*spec.RuntimeClassName, p.Child("runtimeClassName"))...)
	}
	if spec.PreemptionPolicy != nil {
		errs = append(errs, OneOf(*spec.PreemptionPolicy, p.Child("preemptionPolicy"), corev1.PreemptLowerPriority,
			corev1.PreemptNever)...)
	}
	if spec.Overhead != nil {
		errs = append(errs,
			ValidateRequirements(&corev1.ResourceRequirements{Limits: spec.Overhead}, nil, p.Child("overhead"))...)
	}
	errs = append(errs, validateOS(spec, p)...)
	errs = append(errs, s.validateFileKeyRefs(p)...)
	if s.inPod() {
		errs = append(errs, paddedImages(spec.Containers, p.Child("containers"))...)
		errs = append(errs, paddedImages(spec.InitContainers, p.Child("initContainers"))...)
	}
	return errs
}

// ValidateTemplate checks the labels, annotations and spec of a pod template.
func ValidateTemplate(t *corev1.PodTemplateSpec, p *field.Path) field.ErrorList {
	errs := ValidateTemplateLabels(t, p)
	errs = append(errs, Validate(&t.Spec, nil, p.Child("spec"))...)
	errs = append(errs, ValidateSeccompAgrees(t.Annotations, &t.Spec, p.Child("spec"))...)
	if len(t.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(p.Child("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template"))
	}
	return errs
}

// ValidateTemplateLabels checks the labels and annotations of a pod template.
func ValidateTemplateLabels(t *corev1.PodTemplateSpec, p *field.Path) field.ErrorList {
	errs := metavalidation.ValidateLabels(t.Labels, p.Child("labels"))
	errs = append(errs, apivalidation.ValidateAnnotations(t.Annotations, p.Child("annotations"))...)
	return append(errs, ValidateAnnotations(t.Annotations, &t.Spec, p.Child("annotations"))...)
}

// ValidateTemplateForWorkload checks the template of a kind that keeps pods
// running (workload names it in messages: "ReplicaSet", "DaemonSet",
// "StatefulSet", "ReplicationController"): the selector matches it, pods
// restart always and have no deadline.
func ValidateTemplateForWorkload(t *corev1.PodTemplateSpec, selector labels.Selector, workload string,
	p *field.Path) (errs field.ErrorList) {
	if selector != nil && !selector.Empty() && !selector.Matches(labels.Set(t.Labels)) {
		errs = append(errs, field.Invalid(p.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`"))
	}
	errs = append(errs, ValidateTemplate(t, p)...)
	if policy := t.Spec.RestartPolicy; policy != corev1.RestartPolicyAlways {
		errs = append(errs,
			field.NotSupported(p.Child("spec", "restartPolicy"), policy,
				[]corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs,
			field.Forbidden(p.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in "+workload+" is not Supported"))
	}
	return errs
}

// optionalSubdomain checks a name that may be missing.
func optionalSubdomain(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return nil
	}
	return dnsSubdomain(name, p)
}

func validateHostnameOverride(s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	if s.HostnameOverride == nil {
		return nil
	}
	if s.SetHostnameAsFQDN != nil && *s.SetHostnameAsFQDN {
		errs = append(errs, field.Forbidden(p, "may not be specified when setHostnameAsFQDN is true"))
	}
	if s.HostNetwork {
		errs = append(errs, field.Forbidden(p, "may not be specified when hostNetwork is true"))
	}
	if len(*s.HostnameOverride) > 64 {
		errs = append(errs, field.TooLong(p, "", 64))
	}
	return append(errs, subdomainMessages(*s.HostnameOverride, p)...)
}

func validateHostAliases(aliases []corev1.HostAlias, p *field.Path) (errs field.ErrorList) {
	for i, a := range aliases {
		errs = append(errs, validation.IsValidIPForLegacyField(p.Index(i).Child("ip"), a.IP, true, nil)...)
		for j, name := range a.Hostnames {
			errs = append(errs, subdomainMessages(name, p.Index(i).Child("hostnames").Index(j))...)
		}
	}
	return errs
}

func (s *scope) validateResourceClaims(p *field.Path) (errs field.ErrorList) {
	if len(s.spec.ResourceClaims) == 0 {
		return nil
	}
	if s.inPod() && s.meta.Annotations[corev1.MirrorPodAnnotationKey] != "" {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods do not support resource claims")}
	}
	seen := sets.New[string]()
	for i, c := range s.spec.ResourceClaims {
		at := p.Index(i)
		switch {
		case c.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case seen.Has(c.Name):
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		default:
			errs = append(errs, dnsLabel(c.Name, at.Child("name"))...)
			seen.Insert(c.Name)
		}
		switch {
		case c.ResourceClaimName != nil && c.ResourceClaimTemplateName != nil:
			errs = append(errs, field.Invalid(at, c, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"))
		case c.ResourceClaimName == nil && c.ResourceClaimTemplateName == nil:
			errs = append(errs, field.Invalid(at, c, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"))
		}
		if c.ResourceClaimName != nil {
			errs = append(errs, dnsSubdomain(*c.ResourceClaimName, at.Child("resourceClaimName"))...)
		}
		if c.ResourceClaimTemplateName != nil {
			errs = append(errs, dnsSubdomain(*c.ResourceClaimTemplateName, at.Child("resourceClaimTemplateName"))...)
		}
	}
	return errs
}
