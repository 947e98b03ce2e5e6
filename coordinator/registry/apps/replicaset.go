package apps

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
	"github.com/shoal-project/shoal/coordinator/registry/scale"
)

func replicaSet() kind.Kind {
	return kind.Of[appsv1.ReplicaSet]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "replicasets", Singular: "replicaset",
			ShortNames: []string{"rs"}, Categories: []string{"all"}, List: &appsv1.ReplicaSetList{},
		},
		Default: func(r *appsv1.ReplicaSet) {
			podspec.DefaultTemplate(&r.Spec.Template)
			fieldrule.Default(&r.Spec.Replicas, 1)
		},
		Create:         func(_ context.Context, r *appsv1.ReplicaSet) { r.Status = appsv1.ReplicaSetStatus{} },
		Validate:       func(_ context.Context, r *appsv1.ReplicaSet) field.ErrorList { return validateReplicaSet(r) },
		ValidateUpdate: validateReplicaSetUpdate,
		Warnings: func(_ context.Context, r, old *appsv1.ReplicaSet) []string {
			return warnings(r, old, &r.Spec.Template)
		},
		Spec: func(r *appsv1.ReplicaSet) any { return &r.Spec },
		Status: &kind.StatusOf[appsv1.ReplicaSet]{
			Copy:     func(to, from *appsv1.ReplicaSet) { to.Status = from.Status },
			Validate: validateReplicaSetStatus,
		},
		Columns: append([]metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Desired", "integer", appsv1.ReplicaSetSpec{}.SwaggerDoc()["replicas"]),
			kind.Column("Current", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["replicas"]),
			kind.Column("Ready", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["readyReplicas"]),
			kind.AgeColumn(),
		}, templateColumns(appsv1.ReplicaSetSpec{}.SwaggerDoc())...),
		Row: func(r *appsv1.ReplicaSet) []any {
			return append([]any{
				r.Name, deref32(r.Spec.Replicas), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
				kind.Age(r.CreationTimestamp),
			}, templateCells(&r.Spec.Template, r.Spec.Selector)...)
		},
		Subresources: func(env *kind.Env, stores kind.Stores) map[string]rest.Storage {
			return map[string]rest.Storage{"scale": scale.New(stores["apps/replicasets"], scale.Of[appsv1.ReplicaSet]{
				GroupVersion: groupVersion,
				Replicas:     func(r *appsv1.ReplicaSet) **int32 { return &r.Spec.Replicas },
				Current:      func(r *appsv1.ReplicaSet) int32 { return r.Status.Replicas },
				Selector:     func(r *appsv1.ReplicaSet) *metav1.LabelSelector { return r.Spec.Selector },
			})}
		},
	}.Kind()
}

func validateReplicaSet(r *appsv1.ReplicaSet) field.ErrorList {
	p, s := field.NewPath("spec"), &r.Spec
	errs := validateCounts(p, count{"replicas", deref32(s.Replicas)}, count{"minReadySeconds", int64(s.MinReadySeconds)})
	return append(errs,
		workload{name: "deployment", kind: "ReplicaSet", selector: s.Selector, template: &s.Template}.validate(p)...)
}

func validateReplicaSetUpdate(_ context.Context, r, old *appsv1.ReplicaSet) field.ErrorList {
	return append(validateReplicaSet(r),
		apivalidation.ValidateImmutableField(r.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
}

func validateReplicaSetStatus(_ context.Context, r, _ *appsv1.ReplicaSet) field.ErrorList {
	p, s := field.NewPath("status"), &r.Status
	errs := validateCounts(p,
		count{"replicas", int64(s.Replicas)}, count{"fullyLabeledReplicas", int64(s.FullyLabeledReplicas)},
		count{"readyReplicas", int64(s.ReadyReplicas)},
		count{"availableReplicas", int64(s.AvailableReplicas)}, count{"observedGeneration", s.ObservedGeneration},
		count{"terminatingReplicas", deref32(s.TerminatingReplicas)})
	return append(errs,
		validateNotMore(p, int64(s.Replicas), int64(s.ReadyReplicas), int64(s.AvailableReplicas),
			count{"fullyLabeledReplicas", int64(s.FullyLabeledReplicas)})...)
}
