package authorization

import (
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var specPath = field.NewPath("spec")

func validateSpec(spec *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := validateOneOf(spec.ResourceAttributes, spec.NonResourceAttributes)
	if spec.User == "" && len(spec.Groups) == 0 {
		errs = append(errs, field.Invalid(specPath.Child("user"), spec.User, "at least one of user or group must be specified"))
	}
	return append(errs, validateSelectors(spec.ResourceAttributes)...)
}

func validateLocal(r *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
	errs := validateSpec(&r.Spec)
	meta := r.ObjectMeta
	meta.Namespace, meta.ManagedFields = "", nil
	if !equality.Semantic.DeepEqual(metav1.ObjectMeta{}, meta) {
		errs = append(errs, field.Invalid(field.NewPath("metadata"), r.ObjectMeta, "must be empty except for namespace"))
	}
	if a := r.Spec.ResourceAttributes; a != nil && a.Namespace != r.Namespace {
		errs = append(errs, field.Invalid(field.NewPath("spec.resourceAttributes.namespace"), a.Namespace, "must match metadata.namespace"))
	}
	if r.Spec.NonResourceAttributes != nil {
		errs = append(errs, field.Invalid(field.NewPath("spec.nonResourceAttributes"), r.Spec.NonResourceAttributes, "disallowed on this kind of request"))
	}
	return errs
}

func validateAttributes(resource *authorizationv1.ResourceAttributes,
	path *authorizationv1.NonResourceAttributes) field.ErrorList {
	return append(validateOneOf(resource, path), validateSelectors(resource)...)
}

func validateOneOf(resource *authorizationv1.ResourceAttributes,
	path *authorizationv1.NonResourceAttributes) (errs field.ErrorList) {
	if resource != nil && path != nil {
		errs = append(errs, field.Invalid(specPath.Child("nonResourceAttributes"), path, "cannot be specified in combination with resourceAttributes"))
	}
	if resource == nil && path == nil {
		errs = append(errs, field.Invalid(specPath.Child("resourceAttributes"), path, "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	return errs
}

func validateSelectors(resource *authorizationv1.ResourceAttributes) (errs field.ErrorList) {
	if resource == nil {
		return nil
	}
	at := field.NewPath("spec.resourceAttributes")
	if s := resource.FieldSelector; s != nil {
		errs = append(errs, oneForm(s.RawSelector, len(s.Requirements), at.Child("fieldSelector"))...)
		options := metavalidation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
		for i, r := range s.Requirements {
			errs = append(errs,
				metavalidation.ValidateFieldSelectorRequirement(r, options,
					at.Child("fieldSelector", "requirements").Index(i))...)
		}
	}
	if s := resource.LabelSelector; s != nil {
		errs = append(errs, oneForm(s.RawSelector, len(s.Requirements), at.Child("labelSelector"))...)
		options := metavalidation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
		for i, r := range s.Requirements {
			errs = append(errs,
				metavalidation.ValidateLabelSelectorRequirement(r, options,
					at.Child("labelSelector", "requirements").Index(i))...)
		}
	}
	return errs
}

// oneForm wants a selector either as a string or as a list.
func oneForm(raw string, requirements int, at *field.Path) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{field.Invalid(at.Child("rawSelector"), raw, "may not specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{
			field.Required(at.Child("requirements"),
				fmt.Sprintf("when %s is specified, requirements or rawSelector is required", at))}
	}
	return nil
}

func emptyMeta(m metav1.ObjectMeta) field.ErrorList {
	given := m
	given.ManagedFields = nil
	if equality.Semantic.DeepEqual(metav1.ObjectMeta{}, given) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), m, "must be empty")}
}
