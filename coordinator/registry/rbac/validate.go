package rbac

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

func validateRole(_ context.Context, r *rbacv1.Role) field.ErrorList {
	return validateRules(r.Rules, true)
}

func validateRoleUpdate(_ context.Context, r, _ *rbacv1.Role) field.ErrorList {
	return validateRules(r.Rules, true)
}

func validateClusterRole(_ context.Context, r *rbacv1.ClusterRole) field.ErrorList {
	return append(validateRules(r.Rules, false), validateAggregation(r.AggregationRule, nil)...)
}

func validateClusterRoleUpdate(_ context.Context, r, old *rbacv1.ClusterRole) field.ErrorList {
	return append(validateRules(r.Rules, false), validateAggregation(r.AggregationRule, old.AggregationRule)...)
}

func validateRules(rules []rbacv1.PolicyRule, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i := range rules {
		errs = append(errs, validateRule(&rules[i], namespaced, field.NewPath("rules").Index(i))...)
	}
	return errs
}

func validateRule(r *rbacv1.PolicyRule, namespaced bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(r.Verbs) == 0 {
		errs = append(errs, field.Required(at.Child("verbs"), "verbs must contain at least one value"))
	}
	if len(r.NonResourceURLs) > 0 {
		if namespaced {
			errs = append(errs, field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs, "namespaced rules cannot apply to non-resource URLs"))
		}
		if len(r.APIGroups) > 0 || len(r.Resources) > 0 || len(r.ResourceNames) > 0 {
			errs = append(errs, field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs"))
		}
		return errs
	}
	if len(r.APIGroups) == 0 {
		errs = append(errs, field.Required(at.Child("apiGroups"), "resource rules must supply at least one api group"))
	}
	if len(r.Resources) == 0 {
		errs = append(errs, field.Required(at.Child("resources"), "resource rules must supply at least one resource"))
	}
	return errs
}

// validateAggregation lets label values pass that were stored before they were
// checked.
func validateAggregation(a, old *rbacv1.AggregationRule) field.ErrorList {
	if a == nil {
		return nil
	}
	at := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(a.ClusterRoleSelectors) == 0 {
		return field.ErrorList{field.Required(at, "at least one clusterRoleSelector required if aggregationRule is non-nil")}
	}
	var errs field.ErrorList
	options := metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: old != nil &&
		hasInvalidLabelValue(old.ClusterRoleSelectors)}
	for i := range a.ClusterRoleSelectors {
		selector := &a.ClusterRoleSelectors[i]
		errs = append(errs, metavalidation.ValidateLabelSelector(selector, options, at.Index(i))...)
		if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
			errs = append(errs, field.Invalid(at.Index(i), nil, "invalid label selector."))
		}
	}
	return errs
}

func hasInvalidLabelValue(selectors []metav1.LabelSelector) bool {
	for i := range selectors {
		if len(metavalidation.ValidateLabelSelector(&selectors[i],
			metavalidation.LabelSelectorValidationOptions{}, nil)) > 0 {
			return true
		}
	}
	return false
}

func validateRoleBinding(_ context.Context, b *rbacv1.RoleBinding) field.ErrorList {
	return validateBinding(&b.RoleRef, b.Subjects, true)
}

func validateRoleBindingUpdate(_ context.Context, b, old *rbacv1.RoleBinding) field.ErrorList {
	return append(validateBinding(&b.RoleRef, b.Subjects, true), sameRef(b.RoleRef, old.RoleRef)...)
}

func validateClusterRoleBinding(_ context.Context, b *rbacv1.ClusterRoleBinding) field.ErrorList {
	return validateBinding(&b.RoleRef, b.Subjects, false)
}

func validateClusterRoleBindingUpdate(_ context.Context, b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
	return append(validateBinding(&b.RoleRef, b.Subjects, false), sameRef(b.RoleRef, old.RoleRef)...)
}

func sameRef(ref, old rbacv1.RoleRef) field.ErrorList {
	if ref == old {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("roleRef"), ref, "cannot change roleRef")}
}

func validateBinding(ref *rbacv1.RoleRef, subjects []rbacv1.Subject, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("roleRef")
	if ref.APIGroup != rbacv1.GroupName {
		errs = append(errs, field.NotSupported(at.Child("apiGroup"), ref.APIGroup, []string{rbacv1.GroupName}))
	}
	kinds := []string{"ClusterRole"}
	if namespaced {
		kinds = []string{"Role", "ClusterRole"}
	}
	if ref.Kind != "ClusterRole" && !(namespaced && ref.Kind == "Role") {
		errs = append(errs, field.NotSupported(at.Child("kind"), ref.Kind, kinds))
	}
	if ref.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	} else {
		errs = append(errs, fieldrule.Invalid(at.Child("name"), ref.Name, path.IsValidPathSegmentName(ref.Name))...)
	}
	for i := range subjects {
		errs = append(errs, validateSubject(&subjects[i], namespaced, field.NewPath("subjects").Index(i))...)
	}
	return errs
}

func validateSubject(s *rbacv1.Subject, namespaced bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	}
	switch s.Kind {
	case rbacv1.ServiceAccountKind:
		if s.Name != "" {
			errs = append(errs,
				fieldrule.Invalid(at.Child("name"), s.Name, apivalidation.ValidateServiceAccountName(s.Name, false))...)
		}
		if s.APIGroup != "" {
			errs = append(errs, field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{""}))
		}
		if !namespaced && s.Namespace == "" {
			errs = append(errs, field.Required(at.Child("namespace"), ""))
		}
	case rbacv1.UserKind, rbacv1.GroupKind:
		if s.APIGroup != rbacv1.GroupName {
			errs = append(errs, field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{rbacv1.GroupName}))
		}
	default:
		errs = append(errs,
			field.NotSupported(at.Child("kind"), s.Kind,
				[]string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
	}
	return errs
}
