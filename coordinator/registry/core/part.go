package core

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// part is a subresource that writes one part of an object: keep restores the
// rest from the old object, validate checks the result.
type part[T any] struct {
	keep     func(obj, old *T)
	validate func(obj, old *T) field.ErrorList
	// filter says which fields the subresource may own; nil: all but status.
	filter fieldpath.Filter
}

// partREST serves a part on a copy of the main store.
type partREST[T any] struct {
	store *genericregistry.Store
	part  part[T]
}

func newPart[T any](main *genericregistry.Store, p part[T]) *partREST[T] {
	store := *main
	store.UpdateStrategy = partStrategy[T]{RESTUpdateStrategy: main.UpdateStrategy, part: p}
	store.BeginCreate, store.AfterCreate, store.BeginUpdate, store.AfterUpdate = nil, nil, nil, nil
	store.ResetFieldsStrategy = nil
	return &partREST[T]{store: &store, part: p}
}

func (r *partREST[T]) New() runtime.Object { return r.store.New() }

// Destroy leaves the store to the main resource.
func (r *partREST[T]) Destroy() {}

func (r *partREST[T]) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

func (r *partREST[T]) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool,
	options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, false, options)
}

func (r *partREST[T]) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, options)
}

// GetResetFieldsFilter implements rest.ResetFieldsFilterStrategy.
func (r *partREST[T]) GetResetFieldsFilter() map[fieldpath.APIVersion]fieldpath.Filter {
	filter := r.part.filter
	if filter == nil {
		filter = fieldpath.NewExcludeSetFilter(fieldpath.NewSet(fieldpath.MakePathOrDie("status")))
	}
	return map[fieldpath.APIVersion]fieldpath.Filter{"v1": filter}
}

type partStrategy[T any] struct {
	rest.RESTUpdateStrategy
	part part[T]
}

// AllowCreateOnUpdate: a part is of an object that is there.
func (partStrategy[T]) AllowCreateOnUpdate() bool { return false }

func (s partStrategy[T]) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	if all, ok := s.RESTUpdateStrategy.(interface{ DropOff(obj, old runtime.Object) }); ok {
		all.DropOff(obj, old)
	}
	s.part.keep(any(obj).(*T), any(old).(*T))
}

func (s partStrategy[T]) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return s.part.validate(any(obj).(*T), any(old).(*T))
}

func (s partStrategy[T]) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
