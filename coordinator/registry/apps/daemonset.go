package apps

import (
	"context"
	"maps"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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
		Default: defaultDaemonSet,
		Create: func(_ context.Context, d *appsv1.DaemonSet) {
			d.Status = appsv1.DaemonSetStatus{}
			setTemplateGeneration(d, max(templateGeneration(d), 1))
		},
		Update: func(_ context.Context, d, old *appsv1.DaemonSet) {
			generation := templateGeneration(old)
			if !equality.Semantic.DeepEqual(d.Spec.Template, old.Spec.Template) {
				generation++
			}
			setTemplateGeneration(d, generation)
		},
		Validate:       func(_ context.Context, d *appsv1.DaemonSet) field.ErrorList { return validateDaemonSet(d) },
		ValidateUpdate: validateDaemonSetUpdate,
		Warnings: func(_ context.Context, d, old *appsv1.DaemonSet) []string {
			if old != nil && templateGeneration(d) == templateGeneration(old) {
				return nil
			}
			return podspec.TemplateWarnings(&d.Spec.Template, field.NewPath("spec", "template"))
		},
		Spec:     func(d *appsv1.DaemonSet) any { return &d.Spec },
		Readable: checkTemplateGeneration,
		Status: &kind.StatusOf[appsv1.DaemonSet]{
			Copy: func(to, from *appsv1.DaemonSet) { to.Status = from.Status },
			Update: func(_ context.Context, d, old *appsv1.DaemonSet) {
				setTemplateGeneration(d, templateGeneration(old))
			},
			Validate: validateDaemonSetStatus,
		},
		Columns: append([]metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Desired", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["desiredNumberScheduled"]),
			kind.Column("Current", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["currentNumberScheduled"]),
			kind.Column("Ready", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["numberReady"]),
			kind.Column("Up-to-date", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["updatedNumberScheduled"]),
			kind.Column("Available", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["numberAvailable"]),
			kind.Column("Node Selector", "string", corev1.PodSpec{}.SwaggerDoc()["nodeSelector"]),
			kind.AgeColumn(),
		}, templateColumns(appsv1.DaemonSetSpec{}.SwaggerDoc())...),
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

// templateGeneration counts the templates that a daemon set has had. It is a field of
// APIs before apps/v1 and an annotation of this one, which no write changes.
func templateGeneration(d *appsv1.DaemonSet) int64 {
	n, _ := strconv.ParseInt(d.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64) // 0 for none
	return n
}

func setTemplateGeneration(d *appsv1.DaemonSet, n int64) {
	annotations := maps.Clone(d.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[appsv1.DeprecatedTemplateGeneration] = strconv.FormatInt(n, 10)
	d.Annotations = annotations
}

// checkTemplateGeneration refuses an annotation that is no number.
func checkTemplateGeneration(d *appsv1.DaemonSet) error {
	if text, ok := d.Annotations[appsv1.DeprecatedTemplateGeneration]; ok {
		_, err := strconv.ParseInt(text, 10, 64)
		return err
	}
	return nil
}

func defaultDaemonSet(d *appsv1.DaemonSet) {
	if _, ok := d.Annotations[appsv1.DeprecatedTemplateGeneration]; !ok {
		setTemplateGeneration(d, 0) // whoever writes a daemon set owns the annotation, as upstream
	}
	podspec.DefaultTemplate(&d.Spec.Template)
	fieldrule.Default(&d.Spec.RevisionHistoryLimit, 10)
	u := &d.Spec.UpdateStrategy
	fieldrule.DefaultEmpty(&u.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if u.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		fieldrule.Default(&u.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		fieldrule.Default(&u.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
	}
	if u.RollingUpdate != nil { // another strategy may have it too: what it lacks is 0 then
		fieldrule.Default(&u.RollingUpdate.MaxUnavailable, intstr.FromInt32(0))
		fieldrule.Default(&u.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
}

func validateDaemonSet(d *appsv1.DaemonSet) field.ErrorList {
	p, s := field.NewPath("spec"), &d.Spec
	errs := workload{name: daemonSetName, kind: "DaemonSet", selector: s.Selector, template: &s.Template}.validate(p)
	errs = append(errs, validateCounts(p, count{"minReadySeconds", int64(s.MinReadySeconds)},
		count{"templateGeneration", templateGeneration(d)})...)
	errs = append(errs, validateUpdateStrategy(&s.UpdateStrategy, p.Child("updateStrategy"))...)
	return append(errs, validateCounts(p, count{"revisionHistoryLimit", deref32(s.RevisionHistoryLimit)})...)
}

func validateUpdateStrategy(u *appsv1.DaemonSetUpdateStrategy, p *field.Path) field.ErrorList {
	switch u.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
		return nil
	case appsv1.RollingUpdateDaemonSetStrategyType:
	default:
		return field.ErrorList{field.NotSupported(p, u, // the whole of it, as upstream tells it
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
	return append(
		apivalidation.ValidateImmutableField(d.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector")),
		validateDaemonSet(d)...)
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
