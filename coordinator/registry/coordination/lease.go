// Package coordination declares the API group coordination.k8s.io/v1: Lease.
package coordination

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Kinds lists the group's kinds.
func Kinds() []kind.Kind { return []kind.Kind{lease()} }

func lease() kind.Kind {
	return kind.Of[coordinationv1.Lease]{
		Names: kind.Names{
			GroupVersion: coordinationv1.SchemeGroupVersion,
			Resource:     "leases", Singular: "lease", List: &coordinationv1.LeaseList{},
		},
		Validate: func(_ context.Context, l *coordinationv1.Lease) field.ErrorList {
			return validate(&l.Spec, field.NewPath("spec"))
		},
		ValidateUpdate: func(_ context.Context, l, _ *coordinationv1.Lease) field.ErrorList {
			return validate(&l.Spec, field.NewPath("spec"))
		},
		AllowCreateOnUpdate: true, DenyUnconditionalUpdate: true, AnyFinalizer: true,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Holder", "string", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"]), kind.AgeColumn(),
		},
		Row: func(l *coordinationv1.Lease) []any {
			return []any{l.Name, ptr.Deref(l.Spec.HolderIdentity, ""), kind.Age(l.CreationTimestamp)}
		},
	}.Kind()
}

func validate(s *coordinationv1.LeaseSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.LeaseDurationSeconds != nil && *s.LeaseDurationSeconds <= 0 {
		errs = append(errs, field.Invalid(p.Child("leaseDurationSeconds"), *s.LeaseDurationSeconds, "must be greater than 0"))
	}
	if s.LeaseTransitions != nil && *s.LeaseTransitions < 0 {
		errs = append(errs, field.Invalid(p.Child("leaseTransitions"), *s.LeaseTransitions, "must be greater than or equal to 0"))
	}
	return errs
}
