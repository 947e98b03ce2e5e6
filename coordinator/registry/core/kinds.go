package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

var groupVersion = corev1.SchemeGroupVersion

// Kinds lists the kinds of the core group.
func Kinds() []kind.Kind {
	return []kind.Kind{
		namespace(), node(), pod(), binding(), configMap(), secret(), serviceAccount(), service(), endpoints(), event(),
		limitRange(), resourceQuota(), podTemplate(), replicationController(),
		persistentVolume(), persistentVolumeClaim(), componentStatus(),
	}
}

// onBoth makes an update check of a check of the new object alone.
func onBoth[T any](check func(context.Context, *T) field.ErrorList) func(ctx context.Context,
	obj, old *T) field.ErrorList {
	return func(ctx context.Context, obj, _ *T) field.ErrorList { return check(ctx, obj) }
}

func immutable(now, before any, p *field.Path) field.ErrorList {
	return apivalidation.ValidateImmutableField(now, before, p)
}

func subdomain(name string, p *field.Path) field.ErrorList {
	return fieldrule.Invalid(p, name, apivalidation.NameIsDNSSubdomain(name, false))
}

func deref[T any](p *T) (zero T) {
	if p == nil {
		return zero
	}
	return *p
}

func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}
