package source

import (
	"context"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/agent/api"
)

// Handler takes what sources find.
type Handler interface {
	Update(p *corev1.Pod, source string)
	Remove(uid types.UID)
	// Prune is called when all that the source desires is known.
	Prune(source string, desired map[types.UID]bool)
}

// Names of sources, as pod.SourceAPI and pod.SourceFile.
const (
	nameAPI  = "api"
	nameFile = "file"

	// nameHTTP is a source in a pod's annotation alone: such pods are like those of files.
	nameHTTP = "http"
)

const mirrorAnnotation = "kubernetes.io/config.mirror"

// sourceAnnotation tells where a pod comes from.
const sourceAnnotation = "kubernetes.io/config.source"

// API watches the pods that are bound to a node.
type API struct {
	Client  kubernetes.Interface
	Node    string
	Handler Handler
	// Mirrors takes the API's objects of static pods.
	Mirrors *Static
	Log     *slog.Logger

	mu     sync.Mutex
	pods   map[types.NamespacedName]types.UID
	synced chan struct{}
	once   sync.Once
	ready  sync.Once
}

// Synced is closed once the API was heard in full.
func (a *API) Synced() <-chan struct{} {
	a.once.Do(func() { a.synced = make(chan struct{}); a.pods = map[types.NamespacedName]types.UID{} })
	return a.synced
}

// Run watches until ctx ends.
func (a *API) Run(ctx context.Context) error {
	a.Synced()
	r := cache.NewReflectorWithOptions(podListWatch(a.Client, a.Node), &corev1.Pod{}, a, cache.ReflectorOptions{
		Name:    "pods of this node",
		Backoff: api.Retry(),
	})
	r.RunWithContext(ctx)
	return nil
}

func podListWatch(c kubernetes.Interface, node string) *cache.ListWatch {
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return c.CoreV1().Pods("").List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return c.CoreV1().Pods("").Watch(ctx, o)
		},
	}
}

// Add implements cache.ReflectorStore, as do the methods below.
func (a *API) Add(obj any) error { return a.Update(obj) }

// Update takes one pod.
func (a *API) Update(obj any) error {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	p.ManagedFields = nil
	if from, ok := p.Annotations[sourceAnnotation]; ok && from != nameAPI {
		p.Annotations[sourceAnnotation] = nameAPI // nobody but the node says that it is its own
	}
	if _, mirror := p.Annotations[mirrorAnnotation]; mirror {
		if a.Mirrors != nil {
			a.Mirrors.seen(p)
		}
		return nil
	}
	name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	a.mu.Lock()
	old := a.pods[name]
	a.pods[name] = p.UID
	a.mu.Unlock()
	if old != "" && old != p.UID {
		a.Handler.Remove(old)
	}
	a.Handler.Update(p, nameAPI)
	return nil
}

// Delete takes that a pod is gone.
func (a *API) Delete(obj any) error {
	if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = d.Obj
	}
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	if _, mirror := p.Annotations[mirrorAnnotation]; mirror {
		if a.Mirrors != nil {
			a.Mirrors.lost(p)
		}
		return nil
	}
	name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	a.mu.Lock()
	if a.pods[name] == p.UID {
		delete(a.pods, name)
	}
	a.mu.Unlock()
	// The last version tells the grace that the deletion asked for.
	if p.DeletionTimestamp != nil {
		a.Handler.Update(p, nameAPI)
	}
	a.Handler.Remove(p.UID)
	return nil
}

// Replace takes all pods; those that are not among them are gone.
func (a *API) Replace(list []any, _ string) error {
	desired := make(map[types.UID]bool, len(list))
	names := make(map[types.NamespacedName]types.UID, len(list))
	if a.Mirrors != nil {
		a.Mirrors.reset()
	}
	for _, obj := range list {
		p, ok := obj.(*corev1.Pod)
		if !ok {
			continue
		}
		if err := a.Update(p); err != nil {
			return err
		}
		desired[p.UID] = true
		names[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = p.UID
	}
	a.mu.Lock()
	a.pods = names
	a.mu.Unlock()
	a.Handler.Prune(nameAPI, desired)
	a.ready.Do(func() { close(a.synced) })
	return nil
}

// Resync does nothing: nothing is missed between a list and its watch.
func (a *API) Resync() error { return nil }
