package apiserver

import (
	"context"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/autoscaling"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/certificates"
	"k8s.io/client-go/informers/coordination"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// informerFactory is client-go's factory, but for the informers of served kinds,
// which list and watch the stores in process: no HTTP, no encoding.
type informerFactory struct {
	informers.SharedInformerFactory
	stores  map[reflect.Type]*genericregistry.Store
	objects map[schema.GroupResource]runtime.Object
}

func newInformerFactory(client kubernetes.Interface, kinds []kind.Kind, stores kind.Stores) informers.SharedInformerFactory {
	f := &informerFactory{
		SharedInformerFactory: informers.NewSharedInformerFactory(client, 0),
		stores:                map[reflect.Type]*genericregistry.Store{},
		objects:               map[schema.GroupResource]runtime.Object{},
	}
	for _, k := range kinds {
		names := k.KindNames()
		if store := stores[names.GroupVersion.Group+"/"+names.Resource]; store != nil {
			obj := k.NewObject()
			f.stores[reflect.TypeOf(obj)] = store
			f.objects[names.GroupVersion.WithResource(names.Resource).GroupResource()] = obj
		}
	}
	return f
}

// InformerFor returns the one informer of obj's type.
func (f *informerFactory) InformerFor(obj runtime.Object, create internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	store := f.stores[reflect.TypeOf(obj)]
	if store == nil {
		return f.SharedInformerFactory.InformerFor(obj, create)
	}
	return f.SharedInformerFactory.InformerFor(obj, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(storeListWatch{store}, obj, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	})
}

// ForResource returns the informer of a resource; that of a served kind is made
// here first, as client-go's own would go over HTTP.
func (f *informerFactory) ForResource(gvr schema.GroupVersionResource) (informers.GenericInformer, error) {
	if obj := f.objects[gvr.GroupResource()]; obj != nil {
		f.InformerFor(obj, nil)
	}
	return f.SharedInformerFactory.ForResource(gvr)
}

// The typed accessors are client-go's, on this factory's InformerFor.

func (f *informerFactory) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, "", nil)
}
func (f *informerFactory) Apps() apps.Interface                 { return apps.New(f, "", nil) }
func (f *informerFactory) Autoscaling() autoscaling.Interface   { return autoscaling.New(f, "", nil) }
func (f *informerFactory) Batch() batch.Interface               { return batch.New(f, "", nil) }
func (f *informerFactory) Certificates() certificates.Interface { return certificates.New(f, "", nil) }
func (f *informerFactory) Coordination() coordination.Interface { return coordination.New(f, "", nil) }
func (f *informerFactory) Core() core.Interface                 { return core.New(f, "", nil) }
func (f *informerFactory) Discovery() discovery.Interface       { return discovery.New(f, "", nil) }
func (f *informerFactory) Networking() networking.Interface     { return networking.New(f, "", nil) }
func (f *informerFactory) Node() node.Interface                 { return node.New(f, "", nil) }
func (f *informerFactory) Policy() policy.Interface             { return policy.New(f, "", nil) }
func (f *informerFactory) Rbac() rbac.Interface                 { return rbac.New(f, "", nil) }
func (f *informerFactory) Resource() resource.Interface         { return resource.New(f, "", nil) }
func (f *informerFactory) Scheduling() scheduling.Interface     { return scheduling.New(f, "", nil) }
func (f *informerFactory) Storage() storage.Interface           { return storage.New(f, "", nil) }

// storeListWatch lists and watches a store. Lists share their items' content
// with the watch cache.
type storeListWatch struct{ store *genericregistry.Store }

// IsWatchListSemanticsUnSupported makes reflectors list first: a list shares
// memory with the watch cache, while each watch event is a copy.
func (storeListWatch) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.Lister.
func (l storeListWatch) List(o metav1.ListOptions) (runtime.Object, error) {
	return l.store.List(allNamespaces(context.Background()), internalOptions(o))
}

// Watch implements cache.Watcher.
func (l storeListWatch) Watch(o metav1.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(context.Background())
	if o.TimeoutSeconds != nil {
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(*o.TimeoutSeconds)*time.Second)
	}
	w, err := l.store.Watch(allNamespaces(ctx), internalOptions(o))
	if err != nil {
		cancel()
		return nil, err
	}
	return newUnwrapped(w, cancel), nil
}

func allNamespaces(ctx context.Context) context.Context {
	return request.WithNamespace(ctx, metav1.NamespaceAll)
}

func internalOptions(o metav1.ListOptions) *internalversion.ListOptions {
	return &internalversion.ListOptions{
		ResourceVersion: o.ResourceVersion, ResourceVersionMatch: o.ResourceVersionMatch, AllowWatchBookmarks: o.AllowWatchBookmarks,
		TimeoutSeconds: o.TimeoutSeconds, Watch: o.Watch,
	}
}

// unwrapped hands out the objects themselves where the watch cache hands out
// its holders of cached encodings.
type unwrapped struct {
	watch.Interface
	out    chan watch.Event
	done   chan struct{}
	cancel context.CancelFunc
}

func newUnwrapped(w watch.Interface, cancel context.CancelFunc) *unwrapped {
	u := &unwrapped{Interface: w, out: make(chan watch.Event), done: make(chan struct{}), cancel: cancel}
	go u.run()
	return u
}

func (u *unwrapped) run() {
	defer close(u.out)
	for e := range u.Interface.ResultChan() {
		if holder, ok := e.Object.(runtime.CacheableObject); ok {
			e.Object = holder.GetObject()
		}
		select {
		case u.out <- e:
		case <-u.done:
			return
		}
	}
}

func (u *unwrapped) ResultChan() <-chan watch.Event { return u.out }

// Stop ends the watch; the reflector calls it once.
func (u *unwrapped) Stop() {
	select {
	case <-u.done:
	default:
		close(u.done)
		u.cancel()
		u.Interface.Stop()
	}
}
