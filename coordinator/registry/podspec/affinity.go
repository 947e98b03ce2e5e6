package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

const (
	requiredNow  = "requiredDuringSchedulingIgnoredDuringExecution"
	preferredNow = "preferredDuringSchedulingIgnoredDuringExecution"
)

func validateAffinity(a *corev1.Affinity, p *field.Path) (errs field.ErrorList) {
	if a == nil {
		return nil
	}
	if n := a.NodeAffinity; n != nil {
		at := p.Child("nodeAffinity")
		if n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			errs = append(errs,
				ValidateNodeSelector(n.RequiredDuringSchedulingIgnoredDuringExecution, at.Child(requiredNow))...)
		}
		for i, t := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			at := at.Child(preferredNow).Index(i)
			errs = append(errs, validateWeight(t.Weight, at)...)
			errs = append(errs, validateTerm(&t.Preference, false, at.Child("preference"))...)
		}
	}
	if a.PodAffinity != nil {
		at := p.Child("podAffinity")
		errs = append(errs,
			validatePodTerms(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, at.Child(requiredNow))...)
		errs = append(errs,
			validateWeighted(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution, at.Child(preferredNow))...)
	}
	if a.PodAntiAffinity != nil {
		at := p.Child("podAntiAffinity")
		errs = append(errs,
			validatePodTerms(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, at.Child(requiredNow))...)
		errs = append(errs,
			validateWeighted(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
				at.Child(preferredNow))...)
	}
	return errs
}

func validateWeight(w int32, p *field.Path) field.ErrorList {
	if w <= 0 || w > 100 {
		return field.ErrorList{field.Invalid(p.Child("weight"), w, "must be in the range 1-100")}
	}
	return nil
}

// ValidateNodeSelector checks a node selector (node affinity, volume affinity).
func ValidateNodeSelector(s *corev1.NodeSelector, p *field.Path) (errs field.ErrorList) {
	terms := p.Child("nodeSelectorTerms")
	if len(s.NodeSelectorTerms) == 0 {
		return field.ErrorList{field.Required(terms, "must have at least one node selector term")}
	}
	for i := range s.NodeSelectorTerms {
		errs = append(errs, validateTerm(&s.NodeSelectorTerms[i], true, terms.Index(i))...)
	}
	return errs
}

// validateTerm checks one term; strict refuses values that no label can have.
func validateTerm(t *corev1.NodeSelectorTerm, strict bool, p *field.Path) (errs field.ErrorList) {
	for i := range t.MatchExpressions {
		errs = append(errs, validateExpression(&t.MatchExpressions[i], strict, p.Child("matchExpressions").Index(i))...)
	}
	for i := range t.MatchFields {
		errs = append(errs, validateNodeField(&t.MatchFields[i], p.Child("matchFields").Index(i))...)
	}
	return errs
}

func validateExpression(r *corev1.NodeSelectorRequirement, strict bool, p *field.Path) (errs field.ErrorList) {
	values := p.Child("values")
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			errs = append(errs, field.Required(values, "must be specified when `operator` is 'In' or 'NotIn'"))
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			errs = append(errs, field.Forbidden(values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			errs = append(errs, field.Required(values, "must be specified single value when `operator` is 'Lt' or 'Gt'"))
		}
	default:
		errs = append(errs, field.Invalid(p.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	errs = append(errs, metavalidation.ValidateLabelName(r.Key, p.Child("key"))...)
	if strict {
		for i, v := range r.Values {
			errs = append(errs, fieldrule.Invalid(values.Index(i), v, validation.IsValidLabelValue(v))...)
		}
	}
	return errs
}

func validateNodeField(r *corev1.NodeSelectorRequirement, p *field.Path) (errs field.ErrorList) {
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) != 1 {
			errs = append(errs, field.Required(p.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"))
		}
	default:
		errs = append(errs, field.Invalid(p.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	if r.Key != metav1.ObjectNameField {
		return append(errs, field.Invalid(p.Child("key"), r.Key, "not a valid field selector key"))
	}
	for i, v := range r.Values {
		errs = append(errs, dnsSubdomain(v, p.Child("values").Index(i))...)
	}
	return errs
}

func validateWeighted(terms []corev1.WeightedPodAffinityTerm, p *field.Path) (errs field.ErrorList) {
	for i := range terms {
		errs = append(errs, validateWeight(terms[i].Weight, p.Index(i))...)
		errs = append(errs, validatePodTerm(&terms[i].PodAffinityTerm, p.Index(i).Child("podAffinityTerm"))...)
	}
	return errs
}

func validatePodTerms(terms []corev1.PodAffinityTerm, p *field.Path) (errs field.ErrorList) {
	for i := range terms {
		errs = append(errs, validatePodTerm(&terms[i], p.Index(i))...)
	}
	return errs
}

func validatePodTerm(t *corev1.PodAffinityTerm, p *field.Path) field.ErrorList {
	errs := labelSelector(t.LabelSelector, p.Child("labelSelector"))
	errs = append(errs, labelSelector(t.NamespaceSelector, p.Child("namespaceSelector"))...)
	for _, name := range t.Namespaces {
		errs = append(errs, dnsLabel(name, p.Child("namespace"))...)
	}
	errs = append(errs, validateLabelKeys(t.MatchLabelKeys, t.LabelSelector, p.Child("matchLabelKeys"))...)
	errs = append(errs, validateLabelKeys(t.MismatchLabelKeys, t.LabelSelector, p.Child("mismatchLabelKeys"))...)
	errs = append(errs, repeatedKeys(t.MatchLabelKeys, t.LabelSelector, p)...)
	mismatch := sets.New(t.MismatchLabelKeys...)
	for i, key := range t.MatchLabelKeys {
		if mismatch.Has(key) {
			errs = append(errs, field.Invalid(p.Child("matchLabelKeys").Index(i), key, "exists in both matchLabelKeys and mismatchLabelKeys"))
		}
	}
	if t.TopologyKey == "" {
		errs = append(errs, field.Required(p.Child("topologyKey"), "can not be empty"))
	}
	return append(errs, metavalidation.ValidateLabelName(t.TopologyKey, p.Child("topologyKey"))...)
}

func validateLabelKeys(keys []string, selector *metav1.LabelSelector, p *field.Path) (errs field.ErrorList) {
	if len(keys) > 0 && selector == nil {
		return field.ErrorList{field.Forbidden(p, "must not be specified when labelSelector is not set")}
	}
	for i, key := range keys {
		errs = append(errs, metavalidation.ValidateLabelName(key, p.Index(i))...)
	}
	return errs
}

// repeatedKeys refuses match label keys that the selector names as well. The
// registry has by then added one expression for each key, so only a second
// mention is an error.
func repeatedKeys(keys []string, selector *metav1.LabelSelector, p *field.Path) (errs field.ErrorList) {
	if selector == nil || len(keys) == 0 {
		return nil
	}
	index := map[string]int{}
	for i, key := range keys {
		index[key] = i
	}
	seen := sets.KeySet(selector.MatchLabels)
	for _, e := range selector.MatchExpressions {
		if i, ok := index[e.Key]; ok && seen.Has(e.Key) {
			errs = append(errs, field.Invalid(p.Index(i), e.Key, "exists in both matchLabelKeys and labelSelector"))
		}
		seen.Insert(e.Key)
	}
	return errs
}

func validateSpread(constraints []corev1.TopologySpreadConstraint, p *field.Path) (errs field.ErrorList) {
	for i := range constraints {
		c, at := &constraints[i], p.Index(i)
		if c.MaxSkew <= 0 {
			errs = append(errs, field.Invalid(at.Child("maxSkew"), c.MaxSkew, "must be greater than zero"))
		}
		if c.TopologyKey == "" {
			errs = append(errs, field.Required(at.Child("topologyKey"), "can not be empty"))
		}
		errs = append(errs,
			Among(c.WhenUnsatisfiable, at.Child("whenUnsatisfiable"), corev1.DoNotSchedule, corev1.ScheduleAnyway)...)
		for _, later := range constraints[i+1:] {
			if c.TopologyKey == later.TopologyKey && c.WhenUnsatisfiable == later.WhenUnsatisfiable {
				errs = append(errs,
					field.Duplicate(at.Child("{topologyKey, whenUnsatisfiable}"),
						fmt.Sprintf("{%v, %v}", c.TopologyKey, c.WhenUnsatisfiable)))
				break
			}
		}
		errs = append(errs, validateMinDomains(c, at.Child("minDomains"))...)
		for name, policy := range map[string]*corev1.NodeInclusionPolicy{"nodeAffinityPolicy": c.NodeAffinityPolicy,
			"nodeTaintsPolicy": c.NodeTaintsPolicy} {
			if policy != nil {
				errs = append(errs,
					Among(*policy, at.Child(name), corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)...)
			}
		}
		errs = append(errs, validateLabelKeys(c.MatchLabelKeys, c.LabelSelector, at.Child("matchLabelKeys"))...)
		errs = append(errs, repeatedKeys(c.MatchLabelKeys, c.LabelSelector, at)...)
		errs = append(errs, labelSelector(c.LabelSelector, at.Child("labelSelector"))...)
	}
	return errs
}

func validateMinDomains(c *corev1.TopologySpreadConstraint, p *field.Path) (errs field.ErrorList) {
	if c.MinDomains == nil {
		return nil
	}
	if *c.MinDomains <= 0 {
		errs = append(errs, field.Invalid(p, *c.MinDomains, "must be greater than zero"))
	}
	if c.WhenUnsatisfiable != corev1.DoNotSchedule {
		errs = append(errs, field.Invalid(p, c.MinDomains,
			fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", corev1.DoNotSchedule,
				c.WhenUnsatisfiable)))
	}
	return errs
}

// ValidateTolerations checks tolerations; p is the path of the list.
func ValidateTolerations(tolerations []corev1.Toleration, p *field.Path) (errs field.ErrorList) {
	for i := range tolerations {
		t, at := &tolerations[i], p.Index(i)
		if t.Key != "" {
			errs = append(errs, metavalidation.ValidateLabelName(t.Key, at.Child("key"))...)
		} else if t.Operator != corev1.TolerationOpExists {
			errs = append(errs, field.Invalid(at.Child("operator"), t.Operator,
				"operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
		}
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			errs = append(errs, field.Invalid(at.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
		}
		switch t.Operator {
		case corev1.TolerationOpEqual, "":
			if bad := validation.IsValidLabelValue(t.Value); len(bad) > 0 {
				errs = append(errs, field.Invalid(at.Child("operator"), t.Value, strings.Join(bad, ";")))
			}
		case corev1.TolerationOpExists:
			if t.Value != "" {
				errs = append(errs, field.Invalid(at.Child("operator"), t.Value, "value must be empty when `operator` is 'Exists'"))
			}
		default:
			supported := []corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}
			if t.Operator == corev1.TolerationOpLt || t.Operator == corev1.TolerationOpGt {
				// They are off; upstream names them all the same to who asks for one of them.
				supported = append(supported, corev1.TolerationOpLt, corev1.TolerationOpGt)
			}
			errs = append(errs, field.NotSupported(at.Child("operator"), t.Operator, supported))
		}
		if t.Effect != "" {
			errs = append(errs, ValidateTaintEffect(t.Effect, at.Child("effect"))...)
		}
	}
	return errs
}

// ValidateTaintEffect requires one of the three effects.
func ValidateTaintEffect(e corev1.TaintEffect, p *field.Path) field.ErrorList {
	return OneOf(e, p, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
}

func validateGates(s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	for i, g := range s.ReadinessGates {
		errs = append(errs,
			qualifiedName(string(g.ConditionType), p.Child("readinessGates").Index(i).Child("conditionType"))...)
	}
	seen := sets.New[string]()
	for i, g := range s.SchedulingGates {
		at := p.Child("schedulingGates").Index(i)
		errs = append(errs, qualifiedName(g.Name, at)...)
		if seen.Has(g.Name) {
			errs = append(errs, field.Duplicate(at, g.Name))
		}
		seen.Insert(g.Name)
	}
	return errs
}

// Limits of the C library's resolver.
const (
	maxNameservers   = 3
	maxSearchPaths   = 32
	maxSearchLetters = 2048
)

func validateDNS(s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	c := s.DNSConfig
	if s.DNSPolicy == corev1.DNSNone {
		if c == nil {
			return field.ErrorList{field.Required(p, "must provide `dnsConfig` when `dnsPolicy` is None")}
		}
		if len(c.Nameservers) == 0 {
			return field.ErrorList{field.Required(p.Child("nameservers"), "must provide at least one DNS nameserver when `dnsPolicy` is None")}
		}
	}
	if c == nil {
		return nil
	}
	if len(c.Nameservers) > maxNameservers {
		errs = append(errs,
			field.Invalid(p.Child("nameservers"), c.Nameservers,
				fmt.Sprintf("must not have more than %v nameservers", maxNameservers)))
	}
	for i, ip := range c.Nameservers {
		errs = append(errs, validation.IsValidIPForLegacyField(p.Child("nameservers").Index(i), ip, true, nil)...)
	}
	if len(c.Searches) > maxSearchPaths {
		errs = append(errs,
			field.Invalid(p.Child("searches"), c.Searches,
				fmt.Sprintf("must not have more than %v search paths", maxSearchPaths)))
	}
	if len(strings.Join(c.Searches, " ")) > maxSearchLetters {
		errs = append(errs, field.Invalid(p.Child("searches"), c.Searches,
			fmt.Sprintf("must not have more than %v characters (including spaces) in the search list", maxSearchLetters)))
	}
	for i, search := range c.Searches {
		if search != "." {
			search = strings.TrimSuffix(search, ".")
			errs = append(errs,
				fieldrule.Invalid(p.Child("searches").Index(i), search,
					validation.IsDNS1123SubdomainWithUnderscore(search))...)
		}
	}
	for i, o := range c.Options {
		if o.Name == "" {
			errs = append(errs, field.Required(p.Child("options").Index(i), "must not be empty"))
		}
	}
	return errs
}
