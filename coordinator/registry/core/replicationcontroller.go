package core

import (
	"context"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
	"github.com/shoal-project/shoal/coordinator/registry/scale"
)

func replicationController() kind.Kind {
	spec, status := corev1.ReplicationControllerSpec{}.SwaggerDoc(), corev1.ReplicationControllerStatus{}.SwaggerDoc()
	validate := func(_ context.Context, r *corev1.ReplicationController) field.ErrorList { return validateRC(r) }
	return kind.Of[corev1.ReplicationController]{
		Names: kind.Names{
			NameRule:     kind.OnlyWhole,
			GroupVersion: groupVersion, Resource: "replicationcontrollers", Singular: "replicationcontroller",
			ShortNames: []string{"rc"}, Categories: []string{"all"}, List: &corev1.ReplicationControllerList{},
		},
		Default: defaultRC,
		Create: func(_ context.Context, r *corev1.ReplicationController) {
			r.Status = corev1.ReplicationControllerStatus{}
		},
		Validate:       validate,
		ValidateUpdate: onBoth(validate),
		Warnings:       rcWarnings,
		Spec:           func(r *corev1.ReplicationController) any { return &r.Spec },
		Status: &kind.StatusOf[corev1.ReplicationController]{
			Copy:     func(to, from *corev1.ReplicationController) { to.Status = from.Status },
			Validate: validateRCStatus,
		},
		Fields: func(r *corev1.ReplicationController) fields.Set {
			return fields.Set{"status.replicas": strconv.Itoa(int(r.Status.Replicas))}
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Desired", "integer", spec["replicas"]),
			kind.Column("Current", "integer", status["replicas"]),
			kind.Column("Ready", "integer", status["readyReplicas"]),
			kind.AgeColumn(),
			kind.Wide("Containers", "string", "Names of each container in the template."),
			kind.Wide("Images", "string", "Images referenced by each container in the template."),
			kind.Wide("Selector", "string", spec["selector"]),
		},
		Row: func(r *corev1.ReplicationController) []any {
			var names, images string
			if r.Spec.Template != nil {
				names, images = kind.ContainerCells(r.Spec.Template.Spec.Containers)
			}
			return []any{
				r.Name, int64(deref(r.Spec.Replicas)), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
				kind.Age(r.CreationTimestamp), names, images, labels.FormatLabels(r.Spec.Selector),
			}
		},
		GCPolicy: rest.OrphanDependents,
		Subresources: func(_ *kind.Env, stores kind.Stores) map[string]rest.Storage {
			return map[string]rest.Storage{
				"scale": scale.New(stores["/replicationcontrollers"], scale.Of[corev1.ReplicationController]{
					GroupVersion: groupVersion,
					Replicas:     func(r *corev1.ReplicationController) **int32 { return &r.Spec.Replicas },
					Current:      func(r *corev1.ReplicationController) int32 { return r.Status.Replicas },
					Selector: func(r *corev1.ReplicationController) *metav1.LabelSelector {
						return &metav1.LabelSelector{MatchLabels: r.Spec.Selector}
					},
				})}
		},
	}.Kind()
}

// rcWarnings tells on an update, as upstream does, of the template before it.
func rcWarnings(_ context.Context, r, old *corev1.ReplicationController) (warnings []string) {
	t := r.Spec.Template
	switch {
	case old == nil:
		warnings = podspec.OwnerNameWarnings(r.Name)
	case old.Generation == r.Generation:
		return nil
	default:
		t = old.Spec.Template
	}
	if t == nil {
		return warnings
	}
	return append(warnings, podspec.TemplateWarnings(t, field.NewPath("spec", "template"))...)
}

func defaultRC(r *corev1.ReplicationController) {
	if r.Spec.Replicas == nil {
		one := int32(1)
		r.Spec.Replicas = &one
	}
	if r.Spec.Template == nil {
		return
	}
	podspec.DefaultTemplate(r.Spec.Template)
	if len(r.Spec.Template.Labels) == 0 {
		return
	}
	if len(r.Spec.Selector) == 0 {
		r.Spec.Selector = r.Spec.Template.Labels
	}
	if len(r.Labels) == 0 {
		r.Labels = r.Spec.Template.Labels
	}
}

func validateRC(r *corev1.ReplicationController) field.ErrorList {
	p := field.NewPath("spec")
	errs := apivalidation.ValidateNonnegativeField(int64(r.Spec.MinReadySeconds), p.Child("minReadySeconds"))
	if len(r.Spec.Selector) == 0 {
		errs = append(errs, field.Required(p.Child("selector"), ""))
	}
	errs = append(errs, apivalidation.ValidateNonnegativeField(int64(deref(r.Spec.Replicas)), p.Child("replicas"))...)
	if r.Spec.Template == nil {
		return append(errs, field.Required(p.Child("template"), ""))
	}
	selector := labels.Set(r.Spec.Selector).AsSelector()
	return append(errs,
		podspec.ValidateTemplateForWorkload(r.Spec.Template, selector, "ReplicationController", p.Child("template"))...)
}

func validateRCStatus(_ context.Context, r, _ *corev1.ReplicationController) (errs field.ErrorList) {
	p, s := field.NewPath("status"), &r.Status
	counts := []struct {
		name  string
		value int64
	}{
		{"replicas", int64(s.Replicas)}, {"fullyLabeledReplicas", int64(s.FullyLabeledReplicas)},
		{"readyReplicas", int64(s.ReadyReplicas)},
		{"availableReplicas", int64(s.AvailableReplicas)}, {"observedGeneration", s.ObservedGeneration},
	}
	for _, c := range counts {
		errs = append(errs, apivalidation.ValidateNonnegativeField(c.value, p.Child(c.name))...)
	}
	for _, c := range counts {
		if c.value > int64(s.Replicas) && c.name != "observedGeneration" {
			errs = append(errs, field.Invalid(p.Child(c.name), c.value, "cannot be greater than status.replicas"))
		}
	}
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs, field.Invalid(p.Child("availableReplicas"), s.AvailableReplicas, "cannot be greater than readyReplicas"))
	}
	return errs
}
