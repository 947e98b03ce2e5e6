// Package scale is the /scale subresource (autoscaling/v1 Scale), written once
// for every kind that has spec.replicas, a status count and a selector.
package scale

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Of tells where a kind T keeps what a Scale shows.
type Of[T any] struct {
	GroupVersion schema.GroupVersion
	Replicas     func(*T) **int32
	Current      func(*T) int32
	Selector     func(*T) *metav1.LabelSelector
}

// New returns the /scale storage on top of a kind's main store.
func New[T any](store *genericregistry.Store, of Of[T]) rest.Storage {
	return &storage[T]{store: store, of: of}
}

type storage[T any] struct {
	store *genericregistry.Store
	of    Of[T]
}

var _ rest.Patcher = &storage[struct{}]{}

func (s *storage[T]) New() runtime.Object { return &autoscalingv1.Scale{} }

// Destroy does nothing: the main store is not ours.
func (s *storage[T]) Destroy() {}

func (s *storage[T]) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

func (s *storage[T]) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := s.store.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	return s.read(obj)
}

func (s *storage[T]) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	obj, _, err := s.store.Update(ctx, name, &scaled[T]{storage: s, name: name, UpdatedObjectInfo: info},
		s.onCreate(create), s.onUpdate(update), false, options)
	if err != nil {
		return nil, false, err
	}
	scale, err := s.read(obj)
	return scale, false, err
}

func (s *storage[T]) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	scale, ok := obj.(*autoscalingv1.Scale)
	if !ok {
		return nil, fmt.Errorf("print scale: unexpected %T", obj)
	}
	table := &metav1.Table{
		ListMeta: metav1.ListMeta{ResourceVersion: scale.ResourceVersion},
		Rows: []metav1.TableRow{{
			Cells: []any{scale.Name, int64(scale.Spec.Replicas), int64(scale.Status.Replicas),
				kind.Age(scale.CreationTimestamp)},
			Object: runtime.RawExtension{Object: scale},
		}},
	}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		table.ColumnDefinitions = columns
	}
	return table, nil
}

var columns = []metav1.TableColumnDefinition{
	kind.Column("Name", "string", metav1.ObjectMeta{}.SwaggerDoc()["name"]),
	kind.Column("Desired", "integer", autoscalingv1.ScaleSpec{}.SwaggerDoc()["replicas"]),
	kind.Column("Available", "integer", autoscalingv1.ScaleStatus{}.SwaggerDoc()["replicas"]),
	kind.AgeColumn(),
}

func (s *storage[T]) onCreate(f rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		scale, err := s.read(obj)
		if err != nil {
			return err
		}
		return f(ctx, scale)
	}
}

func (s *storage[T]) onUpdate(f rest.ValidateObjectUpdateFunc) rest.ValidateObjectUpdateFunc {
	return func(ctx context.Context, obj, old runtime.Object) error {
		newScale, err := s.read(obj)
		if err != nil {
			return err
		}
		oldScale, err := s.read(old)
		if err != nil {
			return err
		}
		return f(ctx, newScale, oldScale)
	}
}

// read makes the Scale of a stored object.
func (s *storage[T]) read(obj runtime.Object) (*autoscalingv1.Scale, error) {
	t, ok := any(obj).(*T)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("scale of %T", obj))
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(s.of.Selector(t))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	scale := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUID(),
			ResourceVersion: m.GetResourceVersion(), CreationTimestamp: m.GetCreationTimestamp(),
		},
		Status: autoscalingv1.ScaleStatus{Replicas: s.of.Current(t), Selector: selector.String()},
	}
	if replicas := *s.of.Replicas(t); replicas != nil {
		scale.Spec.Replicas = *replicas
	}
	return scale, nil
}

// scaled turns an update of the Scale into one of the object: stored object ->
// old scale -> new scale -> new object.
type scaled[T any] struct {
	*storage[T]
	name string
	rest.UpdatedObjectInfo
}

func (u *scaled[T]) UpdatedObject(ctx context.Context, stored runtime.Object) (runtime.Object, error) {
	obj := stored.DeepCopyObject()
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if m.GetResourceVersion() == "" { // the zero object: nothing is stored
		resource := u.store.DefaultQualifiedResource
		resource.Resource += "/scale"
		return nil, apierrors.NewNotFound(resource, u.name)
	}
	owners := managedfields.NewScaleHandler(m.GetManagedFields(), u.of.GroupVersion, managedfields.ResourcePathMappings{
		u.of.GroupVersion.String(): fieldpath.MakePathOrDie("spec", "replicas"),
	})
	old, err := u.read(obj)
	if err != nil {
		return nil, err
	}
	if old.ManagedFields, err = owners.ToSubresource(); err != nil {
		return nil, err
	}
	updated, err := u.UpdatedObjectInfo.UpdatedObject(ctx, old)
	if err != nil {
		return nil, err
	}
	scale, ok := updated.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("expected input object type to be Scale, but %T", updated))
	}
	if err := validate(scale, old, u.store.DefaultQualifiedResource); err != nil {
		return nil, err
	}
	entries, err := owners.ToParent(scale.ManagedFields)
	if err != nil {
		return nil, err
	}
	m.SetManagedFields(entries)
	if scale.ResourceVersion != "" {
		m.SetResourceVersion(scale.ResourceVersion)
	}
	replicas := scale.Spec.Replicas
	*u.of.Replicas(any(obj).(*T)) = &replicas
	return obj, nil
}

// validate checks a Scale as an object of its own: its metadata too.
func validate(scale, old *autoscalingv1.Scale, of schema.GroupResource) error {
	errs := apivalidation.ValidateObjectMeta(&scale.ObjectMeta, true, apivalidation.NameIsDNSSubdomain,
		field.NewPath("metadata"))
	errs = append(errs,
		apivalidation.ValidateNonnegativeField(int64(scale.Spec.Replicas), field.NewPath("spec", "replicas"))...)
	if len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: "autoscaling", Kind: "Scale"}, old.Name, errs)
	}
	if scale.UID != "" && scale.UID != old.UID {
		of.Resource += "/scale"
		return apierrors.NewConflict(of, old.Name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", scale.UID, old.UID))
	}
	return nil
}
