package kind

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shoal-project/shoal/coordinator/registry/gated"
)

// strategy is what genericregistry.Store asks of a kind: it serves creation,
// update and deletion of the main resource.
type strategy[T any] struct {
	runtime.ObjectTyper
	names.NameGenerator
	of *Of[T]
	// off are the kind's fields of features that are off.
	off gated.Fields
}

func newStrategy[T any](of *Of[T], scheme *runtime.Scheme) (strategy[T], error) {
	off, err := gated.Of(of.key(), reflect.TypeFor[T]())
	if err != nil {
		return strategy[T]{}, fmt.Errorf("fields of %s: %w", of.Resource, err)
	}
	s := strategy[T]{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator, of: of, off: off}
	if of.PlainNames {
		s.NameGenerator = plainNames{}
	}
	return s, nil
}

// plainNames generates no names.
type plainNames struct{}

// GenerateName returns the base.
func (plainNames) GenerateName(base string) string { return base }

// DropOff clears the fields of features that are off, as every write does; for
// subresources that write in a way of their own.
func (s strategy[T]) DropOff(obj, old runtime.Object) { s.off.Drop(obj, old) }

// typed and object convert between T's two faces. A store holds nothing but *T.
func typed[T any](obj runtime.Object) *T { return any(obj).(*T) }
func object[T any](t *T) runtime.Object  { return any(t).(runtime.Object) }
func metaOf[T any](t *T) metav1.Object   { return any(t).(metav1.Object) }

// objectMeta is the metadata of a kind, which embeds it.
func objectMeta[T any](t *T) *metav1.ObjectMeta {
	return any(t).(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
}

func (s strategy[T]) NamespaceScoped() bool          { return !s.of.ClusterScoped }
func (s strategy[T]) AllowCreateOnUpdate() bool      { return s.of.AllowCreateOnUpdate }
func (s strategy[T]) AllowUnconditionalUpdate() bool { return !s.of.DenyUnconditionalUpdate }

func (s strategy[T]) Canonicalize(obj runtime.Object) {
	if s.of.Canonicalize != nil {
		s.of.Canonicalize(typed[T](obj))
	}
}

func (s strategy[T]) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	if s.of.GCPolicy == "" {
		return rest.DeleteDependents
	}
	return s.of.GCPolicy
}

func (s strategy[T]) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	t := typed[T](obj)
	s.off.Drop(t, nil)
	if s.of.Create != nil {
		s.of.Create(ctx, t)
	}
	if s.of.Spec != nil {
		metaOf(t).SetGeneration(1)
	}
}

func (s strategy[T]) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	t := typed[T](obj)
	var errs field.ErrorList
	if !s.of.OwnMeta {
		errs = s.of.validateMeta(t)
	}
	if !s.of.AnyFinalizer {
		errs = append(errs, ValidateFinalizers(metaOf(t))...)
	}
	if s.of.Validate != nil {
		errs = append(errs, s.of.Validate(ctx, t)...)
	}
	return errs
}

func (s strategy[T]) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	if s.of.Warnings == nil {
		return nil
	}
	return s.of.Warnings(ctx, typed[T](obj), nil)
}

func (s strategy[T]) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	t, o := typed[T](obj), typed[T](old)
	if s.of.Status != nil {
		s.of.Status.Copy(t, o)
	}
	// Fields that are dropped have changed as well, for a kind that counts them.
	raise := s.of.CountsDropped && !equality.Semantic.DeepEqual(s.of.Spec(t), s.of.Spec(o))
	raise = raise || s.of.CountsEmpty && !reflect.DeepEqual(s.of.Spec(t), s.of.Spec(o))
	s.off.Drop(t, o)
	if s.of.Update != nil {
		s.of.Update(ctx, t, o)
	}
	if raise || s.of.Spec != nil && !equality.Semantic.DeepEqual(s.of.Spec(t), s.of.Spec(o)) {
		metaOf(t).SetGeneration(metaOf(o).GetGeneration() + 1)
	}
}

func (s strategy[T]) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	t, o := typed[T](obj), typed[T](old)
	return s.of.validateUpdateOf(ctx, t, o, metaRulesOf[s.of.key()].update, s.of.ValidateUpdate)
}

func (s strategy[T]) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	if s.of.Warnings == nil {
		return nil
	}
	return s.of.Warnings(ctx, typed[T](obj), typed[T](old))
}

// GetResetFields names the fields that a write to the main resource loses, so
// that server-side apply claims no ownership of them.
func (s strategy[T]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if s.of.Status == nil {
		return nil
	}
	set := fieldpath.NewSet(fieldpath.MakePathOrDie("status"))
	if s.of.ResetFields != nil {
		set = set.Union(s.of.ResetFields)
	}
	return s.of.resetFields(set)
}

func (o *Of[T]) resetFields(set *fieldpath.Set) map[fieldpath.APIVersion]*fieldpath.Set {
	out := map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(o.GroupVersion.String()): set}
	for _, gv := range o.AlsoServed {
		out[fieldpath.APIVersion(gv.String())] = set
	}
	return out
}

// gracefulStrategy is for kinds whose deletion waits (Pod). It is a type of its
// own because the registry asks by interface whether deletion is graceful.
type gracefulStrategy[T any] struct{ strategy[T] }

func (s gracefulStrategy[T]) CheckGracefulDelete(ctx context.Context, obj runtime.Object,
	options *metav1.DeleteOptions) bool {
	return s.of.Graceful(ctx, typed[T](obj), options)
}

// statusStrategy serves updates of /status.
type statusStrategy[T any] struct{ strategy[T] }

// AllowCreateOnUpdate: there is no status of an object that is not there, also
// where the object itself may be made by an update.
func (statusStrategy[T]) AllowCreateOnUpdate() bool { return false }

// PrepareForUpdate keeps all but metadata and status of the old object, and of the
// metadata what Meta says.
func (s statusStrategy[T]) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	t, o := typed[T](obj), typed[T](old)
	kept := typed[T](old.DeepCopyObject())
	s.of.Status.Copy(kept, t)
	*objectMeta(kept) = *objectMeta(t)
	kind := obj.GetObjectKind().GroupVersionKind()
	*t = *kept
	obj.GetObjectKind().SetGroupVersionKind(kind)
	s.off.Drop(t, o)
	if s.of.Status.Meta != nil {
		s.of.Status.Meta(metaOf(t), metaOf(o))
	}
	if s.of.Status.Update != nil {
		s.of.Status.Update(ctx, t, o)
	}
}

func (s statusStrategy[T]) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	t, o := typed[T](obj), typed[T](old)
	return s.of.validateUpdateOf(ctx, t, o, metaRulesOf[s.of.key()].status, s.of.Status.Validate)
}

func (s statusStrategy[T]) WarningsOnUpdate(_ context.Context, obj, _ runtime.Object) []string {
	if s.of.Status.Warnings == nil {
		return nil
	}
	return s.of.Status.Warnings(typed[T](obj))
}

func (s statusStrategy[T]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldpath.NewSet(fieldpath.MakePathOrDie("spec"))
	if s.of.Status.ResetFields != nil {
		set = set.Union(s.of.Status.ResetFields)
	}
	return s.of.resetFields(set)
}
