package kind

import (
	"context"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/agent/process"
)

// Kind erases the type of o.
func (o Of[T]) Kind() Kind { return &declared[T]{of: o} }

type declared[T any] struct{ of Of[T] }

func (d *declared[T]) KindNames() Names          { return d.of.Names }
func (d *declared[T]) NewObject() runtime.Object { return object(new(T)) }

// NewStore builds the main store; nil for a kind without storage.
func (d *declared[T]) NewStore(env *Env) (*genericregistry.Store, error) {
	o := &d.of
	if o.Rest != nil {
		return nil, nil
	}
	base, err := newStrategy(o, env.Scheme)
	if err != nil {
		return nil, err
	}
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return object(new(T)) },
		NewListFunc:               func() runtime.Object { return newLike(o.List) },
		DefaultQualifiedResource:  schema.GroupResource{Group: o.GroupVersion.Group, Resource: o.Resource},
		SingularQualifiedResource: schema.GroupResource{Group: o.GroupVersion.Group, Resource: o.Singular},
		PredicateFunc:             o.predicate,
		CreateStrategy:            base,
		UpdateStrategy:            base,
		DeleteStrategy:            base,
		ResetFieldsStrategy:       base,
		TableConvertor:            o.table(),
		ReturnDeletedObject:       o.ReturnDeleted,
	}
	if o.Graceful != nil {
		store.DeleteStrategy = gracefulStrategy[T]{base}
		store.ReturnDeletedObject = true
	}
	if o.TTL != nil {
		store.TTLFunc = func(obj runtime.Object, _ uint64, _ bool) (uint64, error) { return o.TTL(typed[T](obj)), nil }
	}
	if o.Store != nil {
		o.Store(env, store)
	}
	if err := store.CompleteWithOptions(o.storeOptions(env)); err != nil {
		return nil, fmt.Errorf("build store of %s: %w", o.Resource, err)
	}
	return store, nil
}

func (o *Of[T]) storeOptions(env *Env) *generic.StoreOptions {
	options := &generic.StoreOptions{RESTOptions: env.RESTOptions, AttrFunc: o.attrs}
	if len(o.Indexed) == 0 {
		return options
	}
	indexers := cache.Indexers{}
	for _, name := range o.Indexed {
		indexers[storage.FieldIndex(name)] = func(obj any) ([]string, error) {
			t, ok := obj.(*T)
			if !ok {
				return nil, fmt.Errorf("index %s: unexpected %T", name, obj)
			}
			return []string{o.fieldValue(t, name)}, nil
		}
	}
	options.Indexers = &indexers
	// The watch cache takes one trigger at most: the first indexed field.
	first := o.Indexed[0]
	options.TriggerFunc = storage.IndexerFuncs{
		first: func(obj runtime.Object) string { return o.fieldValue(typed[T](obj), first) },
	}
	return options
}

func (o *Of[T]) fieldValue(t *T, name string) string {
	if name == "metadata.name" {
		return metaOf(t).GetName()
	}
	return o.Fields(t)[name]
}

// attrs returns what label and field selectors see of an object.
func (o *Of[T]) attrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	t, ok := any(obj).(*T)
	if !ok {
		return nil, nil, fmt.Errorf("%s: unexpected %T", o.Resource, obj)
	}
	return labels.Set(metaOf(t).GetLabels()), o.fieldSet(t), nil
}

func (o *Of[T]) fieldSet(t *T) fields.Set {
	set := fields.Set{}
	if o.Fields != nil {
		set = o.Fields(t)
	}
	set["metadata.name"] = metaOf(t).GetName()
	if !o.ClusterScoped {
		set["metadata.namespace"] = metaOf(t).GetNamespace()
	}
	return set
}

func (o *Of[T]) predicate(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: o.attrs, IndexFields: o.Indexed}
}

// AddTo registers defaulting and the selectable fields.
func (d *declared[T]) AddTo(scheme *runtime.Scheme) error {
	o := &d.of
	if o.Default != nil {
		scheme.AddTypeDefaultingFunc(d.NewObject(), func(obj any) { o.Default(obj.(*T)) })
		if o.List != nil {
			scheme.AddTypeDefaultingFunc(newLike(o.List), func(obj any) { o.defaultList(obj) })
		}
	}
	if o.Fields == nil {
		return nil
	}
	known := o.fieldSet(new(T))
	gvk, err := d.gvk(scheme)
	if err != nil {
		return err
	}
	return scheme.AddFieldLabelConversionFunc(gvk, func(label, value string) (string, string, error) {
		if now, ok := o.RenamedFields[label]; ok {
			label = now
		}
		if _, ok := known[label]; ok {
			return label, value, nil
		}
		if o.RefuseField != nil {
			return "", "", o.RefuseField(label)
		}
		return "", "", fmt.Errorf("field label not supported: %s", label)
	})
}

func (o *Of[T]) defaultList(list any) {
	items := reflect.ValueOf(list).Elem().FieldByName("Items")
	for i := range items.Len() {
		if t, ok := items.Index(i).Addr().Interface().(*T); ok {
			o.Default(t)
		}
	}
}

func (d *declared[T]) gvk(scheme *runtime.Scheme) (schema.GroupVersionKind, error) {
	kinds, _, err := scheme.ObjectKinds(d.NewObject())
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("kind of %s: %w", d.of.Resource, err)
	}
	return d.of.GroupVersion.WithKind(kinds[0].Kind), nil
}

func newLike(obj runtime.Object) runtime.Object {
	return reflect.New(reflect.TypeOf(obj).Elem()).Interface().(runtime.Object)
}

// Storages returns the REST storages of the kind by path.
func (d *declared[T]) Storages(env *Env, stores Stores) (map[string]rest.Storage, error) {
	o := &d.of
	if o.Rest != nil {
		return map[string]rest.Storage{o.Resource: o.Rest(env, stores)}, nil
	}
	store := stores[o.key()]
	if store == nil {
		return nil, fmt.Errorf("no store of %s", o.key())
	}
	readable, err := d.readable(env.Scheme)
	if err != nil {
		return nil, err
	}
	main := &REST{Store: store, names: o.Names, readable: readable}
	out := map[string]rest.Storage{o.Resource: main}
	if o.Main != nil {
		out[o.Resource] = o.Main(env, stores, main)
	}
	if o.Status != nil {
		base, err := newStrategy(o, env.Scheme)
		if err != nil {
			return nil, err
		}
		status := newStatusREST(statusStrategy[T]{base}, store)
		status.readable = readable
		if out[o.Resource+"/status"] = status; !o.Status.NoTable {
			out[o.Resource+"/status"] = shownStatus{status, store.TableConvertor}
		}
	}
	if o.Subresources != nil {
		for name, storage := range o.Subresources(env, stores) {
			out[o.Resource+"/"+name] = storage
		}
	}
	return out, nil
}

func (n Names) key() string { return n.GroupVersion.Group + "/" + n.Resource }

// REST serves a kind's main resource.
type REST struct {
	*genericregistry.Store
	names    Names
	readable *readable
}

// Create refuses what cannot be read, then creates.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	process.GrowStack() // upstream calls it in a goroutine of its own
	if err := r.readable.check(ctx, obj); err != nil {
		return nil, err
	}
	return r.Store.Create(ctx, obj, validate, options)
}

// Update refuses what cannot be read, then updates.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool,
	options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	process.GrowStack() // upstream calls it in a goroutine of its own
	return r.Store.Update(ctx, name, r.readable.wrap(info), create, update, force, options)
}

// ShortNames are kubectl's abbreviations.
func (r *REST) ShortNames() []string { return r.names.ShortNames }

// Categories are the groups of kinds a kind belongs to ("all").
func (r *REST) Categories() []string { return r.names.Categories }

// StatusREST serves /status.
type StatusREST struct {
	store    *genericregistry.Store
	readable *readable
	rest.ResetFieldsStrategy
}

// shownStatus is one that is shown as a table too.
type shownStatus struct {
	*StatusREST
	rest.TableConvertor
}

func newStatusREST[T any](status statusStrategy[T], main *genericregistry.Store) *StatusREST {
	store := *main
	store.UpdateStrategy = status
	store.ResetFieldsStrategy = status
	store.CreateStrategy, store.DeleteStrategy = nil, nil
	store.BeginCreate, store.AfterCreate = nil, nil
	store.BeginUpdate, store.AfterUpdate, store.AfterDelete = nil, nil, nil
	store.DeleteStrategy = main.DeleteStrategy
	return &StatusREST{store: &store, ResetFieldsStrategy: status}
}

// New returns an empty object of the kind.
func (r *StatusREST) New() runtime.Object { return r.store.New() }

// Destroy leaves the store to the main resource, which owns it.
func (r *StatusREST) Destroy() {}

// Get reads the whole object.
func (r *StatusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update writes the status of an object that exists.
func (r *StatusREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool,
	options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	process.GrowStack() // upstream calls it in a goroutine of its own
	// A status is never created by an update, whatever the kind allows otherwise.
	return r.store.Update(ctx, name, r.readable.wrap(info), create, update, false, options)
}
