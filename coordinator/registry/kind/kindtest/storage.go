package kindtest

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// memory holds objects by key. It has what stores ask of a storage without
// watches; the methods of the interface that are missing here panic.
type memory struct {
	storage.Interface
	mu       sync.Mutex
	revision uint64
	objects  map[string]runtime.Object
}

func newMemory() *memory { return &memory{objects: map[string]runtime.Object{}} }

// GetRESTOptions implements generic.RESTOptionsGetter: all resources share one
// storage.
func (m *memory) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	return generic.RESTOptions{
		StorageConfig:           storagebackend.NewDefaultConfig("/", nil).ForResource(gr),
		ResourcePrefix:          gr.String(),
		EnableGarbageCollection: true,
		Decorator: func(
			*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object,
			func() runtime.Object, storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers,
		) (storage.Interface, factory.DestroyFunc, error) {
			return m, func() {}, nil
		},
	}, nil
}

func (*memory) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }
func (*memory) ReadinessCheck() error        { return nil }

// put stores a copy of an object at the next revision, and gives it to out.
func (m *memory) put(key string, obj, out runtime.Object) error {
	m.revision++
	kept := obj.DeepCopyObject()
	if err := m.Versioner().UpdateObject(kept, m.revision); err != nil {
		return err
	}
	m.objects[key] = kept
	set(out, kept)
	return nil
}

// set makes out a copy of an object.
func set(out, obj runtime.Object) {
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(obj.DeepCopyObject()).Elem())
}

func (m *memory) Create(_ context.Context, key string, obj, out runtime.Object, _ uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.objects[key] != nil {
		return storage.NewKeyExistsError(key, 0)
	}
	return m.put(key, obj, out)
}

func (m *memory) Get(_ context.Context, key string, o storage.GetOptions, out runtime.Object) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if obj := m.objects[key]; obj != nil {
		set(out, obj)
	} else if !o.IgnoreNotFound {
		return storage.NewKeyNotFoundError(key, 0)
	}
	return nil
}

func (m *memory) GetList(_ context.Context, key string, o storage.ListOptions, list runtime.Object) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var items []runtime.Object
	for _, k := range slices.Sorted(maps.Keys(m.objects)) {
		if k != key && (!o.Recursive || !strings.HasPrefix(k, strings.TrimSuffix(key, "/")+"/")) {
			continue
		}
		ok, err := o.Predicate.Matches(m.objects[k])
		if err != nil {
			return err
		}
		if ok {
			items = append(items, m.objects[k].DeepCopyObject())
		}
	}
	if err := meta.SetList(list, items); err != nil {
		return err
	}
	return m.Versioner().UpdateList(list, m.revision, "", nil)
}

func (m *memory) Delete(
	ctx context.Context, key string, out runtime.Object, p *storage.Preconditions, validate storage.ValidateObjectFunc,
	_ runtime.Object, _ storage.DeleteOptions,
) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	obj := m.objects[key]
	if obj == nil {
		return storage.NewKeyNotFoundError(key, 0)
	}
	if err := p.Check(key, obj); err != nil {
		return err
	}
	if err := validate(ctx, obj); err != nil {
		return err
	}
	delete(m.objects, key)
	set(out, obj)
	return nil
}

func (m *memory) GuaranteedUpdate(
	_ context.Context, key string, out runtime.Object, ignoreNotFound bool, p *storage.Preconditions,
	try storage.UpdateFunc, _ runtime.Object,
) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.objects[key]
	switch {
	case old == nil && !ignoreNotFound:
		return storage.NewKeyNotFoundError(key, 0)
	case old == nil:
		old = reflect.New(reflect.TypeOf(out).Elem()).Interface().(runtime.Object)
	default:
		if err := p.Check(key, old); err != nil {
			return err
		}
	}
	version, err := m.Versioner().ObjectResourceVersion(old)
	if err != nil {
		return err
	}
	obj, _, err := try(old.DeepCopyObject(), storage.ResponseMeta{ResourceVersion: version})
	if err != nil {
		return err
	}
	return m.put(key, obj, out)
}
