package kind

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
)

// May asks the server's authorizer whether the request's user may do what a
// says beside its User. Without a user or an authorizer nobody may.
func (e *Env) May(ctx context.Context, a authorizer.AttributesRecord) bool {
	u, ok := request.UserFrom(ctx)
	if !ok || e.Authorizer == nil {
		return false
	}
	a.User = u
	decision, _, _ := e.Authorizer.Authorize(ctx, a) // an error of it allows nothing
	return decision == authorizer.DecisionAllow
}

// Guard has check decide on every write to the store whether its user may make
// it, beyond what the authorizer said of the request; old is nil for a create.
// system:masters pass, and updates that only serve garbage collection.
func Guard(store *genericregistry.Store, check func(ctx context.Context, obj, old runtime.Object) error) {
	unlessMaster := func(ctx context.Context, obj, old runtime.Object) error {
		u, ok := request.UserFrom(ctx)
		if ok && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
			return nil
		}
		return check(ctx, obj, old)
	}
	store.BeginCreate = func(ctx context.Context, obj runtime.Object,
		_ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		return func(context.Context, bool) {}, unlessMaster(ctx, obj, nil)
	}
	store.BeginUpdate = func(ctx context.Context, obj, old runtime.Object,
		_ *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		if onlyForGarbageCollection(obj, old) {
			return func(context.Context, bool) {}, nil
		}
		return func(context.Context, bool) {}, unlessMaster(ctx, obj, old)
	}
}

func onlyForGarbageCollection(obj, old runtime.Object) bool {
	masked := obj.DeepCopyObject()
	m, ok1 := masked.(metav1.Object)
	o, ok2 := old.(metav1.Object)
	if !ok1 || !ok2 {
		return false
	}
	m.SetOwnerReferences(o.GetOwnerReferences())
	m.SetFinalizers(o.GetFinalizers())
	m.SetManagedFields(o.GetManagedFields())
	return equality.Semantic.DeepEqual(masked, old)
}
