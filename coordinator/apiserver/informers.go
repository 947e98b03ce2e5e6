package apiserver

import (
	"context"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"k8s.io/client-go/informers/flowcontrol"
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

func newInformerFactory(client kubernetes.Interface, kinds []kind.Kind,
	stores kind.Stores) informers.SharedInformerFactory {
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
func (f *informerFactory) InformerFor(obj runtime.Object,
	create internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	store := f.stores[reflect.TypeOf(obj)]
	if store == nil {
		return f.SharedInformerFactory.InformerFor(obj, create)
	}
	return f.SharedInformerFactory.InformerFor(obj, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(storeListWatch{store}, obj, 0,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
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
func (f *informerFactory) Flowcontrol() flowcontrol.Interface   { return flowcontrol.New(f, "", nil) }
func (f *informerFactory) Networking() networking.Interface     { return networking.New(f, "", nil) }
func (f *informerFactory) Node() node.Interface                 { return node.New(f, "", nil) }
func (f *informerFactory) Policy() policy.Interface             { return policy.New(f, "", nil) }
func (f *informerFactory) Rbac() rbac.Interface                 { return rbac.New(f, "", nil) }
func (f *informerFactory) Resource() resource.Interface         { return resource.New(f, "", nil) }
func (f *informerFactory) Scheduling() scheduling.Interface     { return scheduling.New(f, "", nil) }
func (f *informerFactory) Storage() storage.Interface           { return storage.New(f, "", nil) }

// follower is a storage that hands out what its watch cache holds.
type follower interface {
	// Follow begins with every object and a bookmark that ends them.
	Follow() watch.Interface
}

// storeListWatch follows the watch cache of a store: an informer has the same
// objects as the cache, by the same pointers.
type storeListWatch struct{ store *genericregistry.Store }

func (l storeListWatch) follower() (follower, bool) {
	f, ok := l.store.Storage.Storage.(follower)
	return f, ok
}

// IsWatchListSemanticsUnSupported makes reflectors list first where there is no
// cache to follow (Events).
func (l storeListWatch) IsWatchListSemanticsUnSupported() bool {
	_, ok := l.follower()
	return !ok
}

// List implements cache.Lister.
func (l storeListWatch) List(o metav1.ListOptions) (runtime.Object, error) {
	return l.store.List(allNamespaces(context.Background()), internalOptions(o))
}

// Watch implements cache.Watcher.
func (l storeListWatch) Watch(o metav1.ListOptions) (watch.Interface, error) {
	f, ok := l.follower()
	if !ok {
		return l.store.Watch(allNamespaces(context.Background()), internalOptions(o))
	}
	if o.SendInitialEvents == nil || !*o.SendInitialEvents {
		// What was followed never ends by itself, so this is not asked for; if it
		// were, the answer brings a new beginning.
		return nil, apierrors.NewResourceExpired("only from the beginning")
	}
	return f.Follow(), nil
}

func allNamespaces(ctx context.Context) context.Context {
	return request.WithNamespace(ctx, metav1.NamespaceAll)
}

func internalOptions(o metav1.ListOptions) *internalversion.ListOptions {
	return &internalversion.ListOptions{
		ResourceVersion: o.ResourceVersion, ResourceVersionMatch: o.ResourceVersionMatch,
		AllowWatchBookmarks: o.AllowWatchBookmarks,
		TimeoutSeconds:      o.TimeoutSeconds, Watch: o.Watch,
	}
}
