package apps

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/amount"
	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

func daemonSet() kind.Kind {
	return kind.Of[appsv1.DaemonSet]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "daemonsets", Singular: "daemonset",
			ShortNames: []string{"ds"}, Categories: []string{"all"}, List: &appsv1.DaemonSetList{},
		},
		Default:        defaultDaemonSet,
		Create:         func(_ context.Context, d *appsv1.DaemonSet) { d.Status = appsv1.DaemonSetStatus{} },
		Validate:       func(_ context.Context, d *appsv1.DaemonSet) field.ErrorList { return validateDaemonSet(d) },
		ValidateUpdate: validateDaemonSetUpdate,
		Spec:           func(d *appsv1.DaemonSet) any { return &d.Spec },
		Status: &kind.StatusOf[appsv1.DaemonSet]{
			Copy:     func(to, from *appsv1.DaemonSet) { to.Status = from.Status },
			Validate: validateDaemonSetStatus,
		},
		Columns: append([]metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Desired", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["desiredNumberScheduled"]),
			kind.Column("Current", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["currentNumberScheduled"]),
			kind.Column("Ready", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["numberReady"]),
			kind.Column("Up-to-date", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["updatedNumberScheduled"]),
			kind.Column("Available", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["numberAvailable"]),
			kind.Column("Node Selector", "string", "Labels that a node must have to run the pods."),
			kind.AgeColumn(),
		}, templateColumns()...),
		Row: func(d *appsv1.DaemonSet) []any {
			s := &d.Status
			return append([]any{
				d.Name, int64(s.DesiredNumberScheduled), int64(s.CurrentNumberScheduled), int64(s.NumberReady),
				int64(s.UpdatedNumberScheduled),
				int64(s.NumberAvailable), labels.FormatLabels(d.Spec.Template.Spec.NodeSelector),
				kind.Age(d.CreationTimestamp),
			}, templateCells(&d.Spec.Template, d.Spec.Selector)...)
		},
	}.Kind()
}

func defaultDaemonSet(d *appsv1.DaemonSet) {
	podspec.DefaultTemplate(&d.Spec.Template)
	fieldrule.Default(&d.Spec.RevisionHistoryLimit, 10)
	u := &d.Spec.UpdateStrategy
	fieldrule.DefaultEmpty(&u.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if u.Type != appsv1.RollingUpdateDaemonSetStrategyType {
		return
	}
	fieldrule.Default(&u.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
	fieldrule.Default(&u.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
	fieldrule.Default(&u.RollingUpdate.MaxSurge, intstr.FromInt32(0))
}

func validateDaemonSet(d *appsv1.DaemonSet) field.ErrorList {
	p, s := field.NewPath("spec"), &d.Spec
	errs := workload{name: "daemonset", kind: "DaemonSet", selector: s.Selector, template: &s.Template}.validate(p)
	errs = append(errs,
		validateCounts(p, count{"minReadySeconds", int64(s.MinReadySeconds)},
			count{"revisionHistoryLimit", deref32(s.RevisionHistoryLimit)})...)
	return append(errs, validateUpdateStrategy(&s.UpdateStrategy, p.Child("updateStrategy"))...)
}

func validateUpdateStrategy(u *appsv1.DaemonSetUpdateStrategy, p *field.Path) field.ErrorList {
	switch u.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
		return nil
	case appsv1.RollingUpdateDaemonSetStrategyType:
	default:
		return field.ErrorList{field.NotSupported(p.Child("type"), u.Type,
			[]appsv1.DaemonSetUpdateStrategyType{appsv1.RollingUpdateDaemonSetStrategyType,
				appsv1.OnDeleteDaemonSetStrategyType})}
	}
	r, p := u.RollingUpdate, p.Child("rollingUpdate")
	errs := amount.ValidateAtMost100(*r.MaxUnavailable, p.Child("maxUnavailable"))
	errs = append(errs, amount.ValidateAtMost100(*r.MaxSurge, p.Child("maxSurge"))...)
	switch unavailable, surge := !amount.IsZero(r.MaxUnavailable), !amount.IsZero(r.MaxSurge); {
	case unavailable && surge:
		errs = append(errs, field.Invalid(p.Child("maxSurge"), *r.MaxSurge, "may not be set when maxUnavailable is non-zero"))
	case !unavailable && !surge:
		errs = append(errs, field.Required(p.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
	}
	return errs
}

func validateDaemonSetUpdate(_ context.Context, d, old *appsv1.DaemonSet) field.ErrorList {
	return append(validateDaemonSet(d),
		apivalidation.ValidateImmutableField(d.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
}

func validateDaemonSetStatus(_ context.Context, d, old *appsv1.DaemonSet) field.ErrorList {
	p, s := field.NewPath("status"), &d.Status
	errs := validateCounts(p,
		count{"currentNumberScheduled", int64(s.CurrentNumberScheduled)},
		count{"numberMisscheduled", int64(s.NumberMisscheduled)},
		count{"desiredNumberScheduled", int64(s.DesiredNumberScheduled)}, count{"numberReady", int64(s.NumberReady)},
		count{"observedGeneration", s.ObservedGeneration},
		count{"updatedNumberScheduled", int64(s.UpdatedNumberScheduled)},
		count{"numberAvailable", int64(s.NumberAvailable)}, count{"numberUnavailable", int64(s.NumberUnavailable)},
		count{"collisionCount", deref32(s.CollisionCount)})
	return append(errs,
		validateNotDecremented(p.Child("collisionCount"), s.CollisionCount, old.Status.CollisionCount)...)
}
