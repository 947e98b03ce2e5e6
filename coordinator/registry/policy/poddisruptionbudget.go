// Package policy declares the API group policy/v1: PodDisruptionBudget. The
// Eviction of that group is a subresource of core's Pod.
package policy

import (
	"context"
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/amount"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Kinds lists the group's kinds.
func Kinds() []kind.Kind { return []kind.Kind{podDisruptionBudget()} }

func podDisruptionBudget() kind.Kind {
	return kind.Of[policyv1.PodDisruptionBudget]{
		Names: kind.Names{
			GroupVersion: policyv1.SchemeGroupVersion, Resource: "poddisruptionbudgets", Singular: "poddisruptionbudget",
			ShortNames: []string{"pdb"}, List: &policyv1.PodDisruptionBudgetList{},
			// Upstream has no rule but that of all names, which the registry checks.
			NameRule: path.ValidatePathSegmentName,
		},
		OwnMeta: true, // told when nothing else is wrong
		Create: func(_ context.Context, b *policyv1.PodDisruptionBudget) {
			b.Status = policyv1.PodDisruptionBudgetStatus{}
		},
		Validate: func(_ context.Context, b *policyv1.PodDisruptionBudget) field.ErrorList { return validate(b) },
		ValidateUpdate: func(_ context.Context, b, _ *policyv1.PodDisruptionBudget) field.ErrorList {
			return validate(b)
		},
		DenyUnconditionalUpdate: true,
		AnyFinalizer:            true,
		Spec:                    func(b *policyv1.PodDisruptionBudget) any { return &b.Spec },
		Status: &kind.StatusOf[policyv1.PodDisruptionBudget]{
			Copy:     func(to, from *policyv1.PodDisruptionBudget) { to.Status = from.Status },
			Validate: validateStatus,
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Min Available", "string", "The minimum number of pods that must be available."),
			kind.Column("Max Unavailable", "string", "The maximum number of pods that may be unavailable."),
			kind.Column("Allowed Disruptions", "integer", "Calculated number of pods that may be disrupted at this time."),
			kind.AgeColumn(),
		},
		Row: func(b *policyv1.PodDisruptionBudget) []any {
			return []any{b.Name, orNA(b.Spec.MinAvailable), orNA(b.Spec.MaxUnavailable),
				int64(b.Status.DisruptionsAllowed), kind.Age(b.CreationTimestamp)}
		},
	}.Kind()
}

func orNA(v *intstr.IntOrString) string {
	if v == nil {
		return "N/A"
	}
	return v.String()
}

func validate(b *policyv1.PodDisruptionBudget) field.ErrorList {
	var errs field.ErrorList
	p, s := field.NewPath("spec"), &b.Spec
	if s.MinAvailable != nil && s.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(p, *s, "minAvailable and maxUnavailable cannot be both set"))
	}
	if s.MinAvailable != nil {
		errs = append(errs, amount.ValidateAtMost100(*s.MinAvailable, p.Child("minAvailable"))...)
	}
	if s.MaxUnavailable != nil {
		errs = append(errs, amount.ValidateAtMost100(*s.MaxUnavailable, p.Child("maxUnavailable"))...)
	}
	errs = append(errs,
		metavalidation.ValidateLabelSelector(s.Selector,
			metavalidation.LabelSelectorValidationOptions{}, p.Child("selector"))...)
	supported := []policyv1.UnhealthyPodEvictionPolicyType{policyv1.AlwaysAllow, policyv1.IfHealthyBudget}
	if u := s.UnhealthyPodEvictionPolicy; u != nil && !slices.Contains(supported, *u) {
		errs = append(errs, field.NotSupported(p.Child("unhealthyPodEvictionPolicy"), *u, supported))
	}
	return errs
}

func validateStatus(_ context.Context, b, _ *policyv1.PodDisruptionBudget) field.ErrorList {
	p, s := field.NewPath("status"), &b.Status
	errs := metavalidation.ValidateConditions(s.Conditions, p.Child("conditions"))
	for _, c := range []struct {
		name  string
		value int32
	}{
		{"disruptionsAllowed", s.DisruptionsAllowed}, {"currentHealthy", s.CurrentHealthy},
		{"desiredHealthy", s.DesiredHealthy}, {"expectedPods", s.ExpectedPods},
	} {
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(c.value), p.Child(c.name))...)
	}
	return errs
}
