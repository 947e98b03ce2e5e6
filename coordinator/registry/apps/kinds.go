package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

var groupVersion = appsv1.SchemeGroupVersion

// Kinds lists the group's kinds.
func Kinds() []kind.Kind {
	return []kind.Kind{deployment(), replicaSet(), daemonSet(), statefulSet(), controllerRevision()}
}

// workload is what the pod owners of this group share.
type workload struct {
	name     string // in messages: "deployment"
	kind     string // in messages: "ReplicaSet"
	selector *metav1.LabelSelector
	template *corev1.PodTemplateSpec
	// skipTemplate leaves out the template's own checks, but for its selector,
	// restart policy and deadline.
	skipTemplate bool
}

// Two kinds tell in words of their own what is wrong with their selectors.
const daemonSetName, statefulSetName = "daemonset", "statefulset"

// validate checks selector and template, and that they match each other.
func (w workload) validate(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if w.selector == nil {
		if w.name != daemonSetName {
			errs = append(errs, field.Required(p.Child("selector"), ""))
		}
	} else {
		errs = append(errs,
			metavalidation.ValidateLabelSelector(w.selector,
				metavalidation.LabelSelectorValidationOptions{}, p.Child("selector"))...)
		if len(w.selector.MatchLabels)+len(w.selector.MatchExpressions) == 0 {
			errs = append(errs, field.Invalid(p.Child("selector"), w.selector, "empty selector is invalid for "+w.name))
		}
	}
	template := p.Child("template")
	selector, err := metav1.LabelSelectorAsSelector(w.selector)
	switch {
	case err != nil && w.name != daemonSetName:
		why := "invalid label selector"
		if w.name == statefulSetName {
			why = ""
		}
		errs = append(errs, field.Invalid(p.Child("selector"), w.selector, why))
		if w.name != statefulSetName {
			return errs // upstream looks at the template only with a selector that it can read
		}
		w.skipTemplate = true
	case err == nil && !selector.Matches(labels.Set(w.template.Labels)):
		// A selector that is missing matches nothing.
		errs = append(errs, field.Invalid(template.Child("metadata", "labels"), w.template.Labels, "`selector` does not match template `labels`"))
	}
	if !w.skipTemplate {
		errs = append(errs, podspec.ValidateTemplate(w.template, template)...)
	}
	if w.name == statefulSetName { // twice, as upstream
		errs = append(errs, podspec.ValidateTemplateLabels(w.template, template)...)
	}
	if policy := w.template.Spec.RestartPolicy; policy != corev1.RestartPolicyAlways {
		errs = append(errs,
			field.NotSupported(template.Child("spec", "restartPolicy"), policy,
				[]corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if w.template.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs,
			field.Forbidden(template.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in "+w.kind+" is not Supported"))
	}
	return errs
}

// warnings are those of a name, for a new object whose pods are named after it, and
// of a template that is new or of a new generation.
func warnings[T any, P interface {
	*T
	metav1.Object
}](o, old P, template *corev1.PodTemplateSpec) (out []string) {
	if old == nil {
		out = podspec.OwnerNameWarnings(o.GetName())
	}
	if old == nil || o.GetGeneration() != old.GetGeneration() {
		out = append(out, podspec.TemplateWarnings(template, field.NewPath("spec", "template"))...)
	}
	return out
}

// count is a named non-negative number of a spec or status.
type count struct {
	field string
	value int64
}

func validateCounts(p *field.Path, counts ...count) field.ErrorList {
	var errs field.ErrorList
	for _, c := range counts {
		errs = append(errs, apivalidation.ValidateNonnegativeField(c.value, p.Child(c.field))...)
	}
	return errs
}

// validateNotMore refuses status counts above status.replicas and more
// available than ready replicas.
func validateNotMore(p *field.Path, replicas, ready, available int64, counts ...count) field.ErrorList {
	var errs field.ErrorList
	for _, c := range append(counts, count{"readyReplicas", ready}, count{"availableReplicas", available}) {
		if c.value > replicas {
			errs = append(errs, field.Invalid(p.Child(c.field), c.value, "cannot be greater than status.replicas"))
		}
	}
	if available > ready {
		errs = append(errs, field.Invalid(p.Child("availableReplicas"), available, "cannot be greater than readyReplicas"))
	}
	return errs
}

func validateNotDecremented(p *field.Path, now, before *int32) field.ErrorList {
	if before == nil || (now != nil && *now >= *before) {
		return nil
	}
	value := int32(0)
	if now != nil {
		value = *now
	}
	return field.ErrorList{field.Invalid(p, value, "cannot be decremented")}
}

func deref32(p *int32) int64 {
	if p == nil {
		return 0
	}
	return int64(*p)
}

// templateColumns are the wide columns of kinds with a pod template; spec are the
// descriptions of the kind's spec.
func templateColumns(spec map[string]string) []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		kind.Wide("Containers", "string", "Names of each container in the template."),
		kind.Wide("Images", "string", "Images referenced by each container in the template."),
		kind.Wide("Selector", "string", spec["selector"]),
	}
}

func templateCells(t *corev1.PodTemplateSpec, selector *metav1.LabelSelector) []any {
	names, images := kind.ContainerCells(t.Spec.Containers)
	return []any{names, images, metav1.FormatLabelSelector(selector)}
}
