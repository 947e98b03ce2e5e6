package apps

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shoal-project/shoal/coordinator/registry/amount"
	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
	"github.com/shoal-project/shoal/coordinator/registry/scale"
)

func deployment() kind.Kind {
	return kind.Of[appsv1.Deployment]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "deployments", Singular: "deployment",
			ShortNames: []string{"deploy"}, Categories: []string{"all"}, List: &appsv1.DeploymentList{},
		},
		Default:        defaultDeployment,
		Create:         func(_ context.Context, d *appsv1.Deployment) { d.Status = appsv1.DeploymentStatus{} },
		Validate:       func(_ context.Context, d *appsv1.Deployment) field.ErrorList { return validateDeployment(d) },
		ValidateUpdate: validateDeploymentUpdate,
		Warnings: func(_ context.Context, d, old *appsv1.Deployment) []string {
			return warnings(d, old, &d.Spec.Template)
		},
		// Annotations count, for the replica sets have them too.
		Spec: func(d *appsv1.Deployment) any { return []any{&d.Spec, d.Annotations} },
		Status: &kind.StatusOf[appsv1.Deployment]{
			Copy:        func(to, from *appsv1.Deployment) { to.Status = from.Status },
			Meta:        func(d, old metav1.Object) { d.SetLabels(old.GetLabels()) },
			Validate:    validateDeploymentStatus,
			ResetFields: fieldpath.NewSet(fieldpath.MakePathOrDie("metadata", "labels")),
		},
		Columns: append([]metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Ready", "string", "Number of the pod with ready state"),
			kind.Column("Up-to-date", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["updatedReplicas"]),
			kind.Column("Available", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["availableReplicas"]),
			kind.AgeColumn(),
		}, templateColumns(appsv1.DeploymentSpec{}.SwaggerDoc())...),
		Row: func(d *appsv1.Deployment) []any {
			return append([]any{
				d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, deref32(d.Spec.Replicas)),
				int64(d.Status.UpdatedReplicas), int64(d.Status.AvailableReplicas), kind.Age(d.CreationTimestamp),
			}, templateCells(&d.Spec.Template, d.Spec.Selector)...)
		},
		Subresources: func(env *kind.Env, stores kind.Stores) map[string]rest.Storage {
			return map[string]rest.Storage{"scale": scale.New(stores["apps/deployments"], scale.Of[appsv1.Deployment]{
				GroupVersion: groupVersion,
				Replicas:     func(d *appsv1.Deployment) **int32 { return &d.Spec.Replicas },
				Current:      func(d *appsv1.Deployment) int32 { return d.Status.Replicas },
				Selector:     func(d *appsv1.Deployment) *metav1.LabelSelector { return d.Spec.Selector },
			})}
		},
	}.Kind()
}

func defaultDeployment(d *appsv1.Deployment) {
	s := &d.Spec
	podspec.DefaultTemplate(&s.Template)
	fieldrule.Default(&s.Replicas, 1)
	fieldrule.Default(&s.RevisionHistoryLimit, 10)
	fieldrule.Default(&s.ProgressDeadlineSeconds, 600)
	fieldrule.DefaultEmpty(&s.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if s.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
		return
	}
	fieldrule.Default(&s.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
	fieldrule.Default(&s.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
	fieldrule.Default(&s.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
}

func validateDeployment(d *appsv1.Deployment) field.ErrorList {
	p, s := field.NewPath("spec"), &d.Spec
	errs := validateCounts(p, count{"replicas", deref32(s.Replicas)})
	whole := workload{name: "deployment", kind: "ReplicaSet", selector: s.Selector, template: &s.Template}
	errs = append(errs, whole.validate(p)...)
	errs = append(errs, validateStrategy(&s.Strategy, p.Child("strategy"))...)
	errs = append(errs, validateCounts(p,
		count{"minReadySeconds", int64(s.MinReadySeconds)},
		count{"revisionHistoryLimit", deref32(s.RevisionHistoryLimit)},
		count{"progressDeadlineSeconds", deref32(s.ProgressDeadlineSeconds)})...)
	if s.ProgressDeadlineSeconds != nil && *s.ProgressDeadlineSeconds <= s.MinReadySeconds {
		errs = append(errs, field.Invalid(p.Child("progressDeadlineSeconds"), *s.ProgressDeadlineSeconds, "must be greater than minReadySeconds"))
	}
	return errs
}

func validateStrategy(s *appsv1.DeploymentStrategy, p *field.Path) field.ErrorList {
	rolling := p.Child("rollingUpdate")
	switch s.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{field.Forbidden(rolling, "may not be specified when strategy `type` is 'Recreate'")}
		}
		return nil
	case appsv1.RollingUpdateDeploymentStrategyType:
		r := s.RollingUpdate
		errs := amount.ValidateAtMost100(*r.MaxUnavailable, rolling.Child("maxUnavailable"))
		errs = append(errs, amount.Validate(*r.MaxSurge, rolling.Child("maxSurge"))...)
		if amount.IsZero(r.MaxUnavailable) && amount.IsZero(r.MaxSurge) {
			errs = append(errs, field.Invalid(rolling.Child("maxUnavailable"), *r.MaxUnavailable, "may not be 0 when `maxSurge` is 0"))
		}
		return errs
	}
	return field.ErrorList{field.NotSupported(p, s, // the whole of it, as upstream tells it
		[]appsv1.DeploymentStrategyType{appsv1.RecreateDeploymentStrategyType,
			appsv1.RollingUpdateDeploymentStrategyType})}
}

func validateDeploymentUpdate(_ context.Context, d, old *appsv1.Deployment) field.ErrorList {
	return append(validateDeployment(d),
		apivalidation.ValidateImmutableField(d.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
}

func validateDeploymentStatus(_ context.Context, d, old *appsv1.Deployment) field.ErrorList {
	p, s := field.NewPath("status"), &d.Status
	errs := validateCounts(p,
		count{"observedGeneration", s.ObservedGeneration}, count{"replicas", int64(s.Replicas)},
		count{"updatedReplicas", int64(s.UpdatedReplicas)},
		count{"readyReplicas", int64(s.ReadyReplicas)}, count{"availableReplicas", int64(s.AvailableReplicas)},
		count{"unavailableReplicas", int64(s.UnavailableReplicas)},
		count{"terminatingReplicas", deref32(s.TerminatingReplicas)},
		count{"collisionCount", deref32(s.CollisionCount)})
	errs = append(errs,
		validateNotMore(p, int64(s.Replicas), int64(s.ReadyReplicas), int64(s.AvailableReplicas),
			count{"updatedReplicas", int64(s.UpdatedReplicas)})...)
	return append(errs,
		validateNotDecremented(p.Child("collisionCount"), s.CollisionCount, old.Status.CollisionCount)...)
}
