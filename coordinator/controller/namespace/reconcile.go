package namespace

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"

	"github.com/shoal-project/shoal/coordinator/controller"
)

const (
	// parallel resources are emptied at once.
	parallel = 8
	// What is left is looked at again after a growing time: nothing watches
	// every kind of every group. Pods, on which most deletions wait, wake their
	// namespace by their events.
	firstLook, lastLook = 100 * time.Millisecond, 5 * time.Second
)

var podsResource = corev1.SchemeGroupVersion.WithResource("pods")

type reconciler struct {
	client     kubernetes.Interface
	discovery  discovery.DiscoveryInterface
	metadata   metadata.Interface
	namespaces corelisters.NamespaceLister
	mu         sync.Mutex
	looked     map[string]time.Duration
}

// Deps are what the controller needs beyond Env.
type Deps struct {
	Discovery discovery.DiscoveryInterface
	Metadata  metadata.Interface
}

// New builds the controller.
func New(env controller.Env, deps Deps) (*controller.Loop, error) {
	core := env.Informers.Core().V1()
	r := &reconciler{
		client: env.Client, discovery: deps.Discovery, metadata: deps.Metadata,
		namespaces: core.Namespaces().Lister(), looked: map[string]time.Duration{},
	}
	loop := controller.New("namespace", 5, env.Log)
	loop.Reconciler = r
	controller.Watch(loop, core.Namespaces().Informer(), func(_, ns *corev1.Namespace) {
		if ns != nil && ns.DeletionTimestamp != nil {
			loop.Add(ns.Name)
		}
	})
	controller.Watch(loop, core.Pods().Informer(), func(old, pod *corev1.Pod) {
		if pod != nil {
			return
		}
		if ns, err := r.namespaces.Get(old.Namespace); err == nil && ns.DeletionTimestamp != nil {
			loop.Add(ns.Name)
		}
	})
	return loop, nil
}

// Reconcile empties one namespace that is being deleted.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	ns, err := r.client.CoreV1().Namespaces().Get(ctx, key, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		r.forget(key)
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if ns.DeletionTimestamp == nil || !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		r.forget(key)
		return 0, nil
	}
	if ns.Status.Phase != corev1.NamespaceTerminating {
		ns.Status.Phase = corev1.NamespaceTerminating
		if ns, err = r.client.CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{}); err != nil {
			return 0, controller.IgnoreGone(err)
		}
	}
	o := r.empty(ctx, key)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if o.done() {
		r.forget(key)
		return 0, r.finalize(ctx, ns)
	}
	if merged, changed := conditions(ns.Status.Conditions, o, time.Now()); changed {
		ns.Status.Conditions = merged
		if _, err := r.client.CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{}); err != nil {
			return 0, controller.IgnoreGone(err)
		}
	}
	if err := o.err(); err != nil {
		return 0, err
	}
	return r.nextLook(key), nil
}

func (r *reconciler) finalize(ctx context.Context, ns *corev1.Namespace) error {
	ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers,
		func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	_, err := r.client.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{})
	return controller.IgnoreGone(err)
}

func (r *reconciler) nextLook(key string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := min(max(r.looked[key]*2, firstLook), lastLook)
	r.looked[key] = d
	return d
}

func (r *reconciler) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.looked, key)
}

// empty deletes all content, pods first: what pods depend on (policies,
// secrets) stays until they are gone (KEP-5080).
func (r *reconciler) empty(ctx context.Context, namespace string) *outcome {
	o := &outcome{remaining: map[schema.GroupVersionResource]int{}, finalizers: map[string]int{}}
	lists, err := r.discovery.ServerPreferredResources()
	if err != nil {
		o.discovery = err
	}
	resources, err := deletable(lists)
	if err != nil {
		o.groups = err
	}
	if verbs, ok := resources[podsResource]; ok {
		r.note(o, podsResource, r.emptyOne(ctx, namespace, podsResource, verbs))
		if o.remaining[podsResource] > 0 {
			o.partly = true
			return o
		}
		delete(resources, podsResource)
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		slots = make(chan struct{}, parallel)
	)
	for gvr, verbs := range resources {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			one := r.emptyOne(ctx, namespace, gvr, verbs)
			mu.Lock()
			defer mu.Unlock()
			r.note(o, gvr, one)
		})
	}
	wg.Wait()
	return o
}

// deletable are the namespaced resources that can be deleted, with their verbs.
func deletable(lists []*metav1.APIResourceList) (map[schema.GroupVersionResource]metav1.Verbs, error) {
	out := map[schema.GroupVersionResource]metav1.Verbs{}
	var bad error
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			bad = err
			continue
		}
		for _, res := range l.APIResources {
			if res.Namespaced && slices.Contains(res.Verbs, "delete") {
				out[gv.WithResource(res.Name)] = res.Verbs
			}
		}
	}
	return out, bad
}

// left is what emptying one resource left behind.
type left struct {
	items      int
	finalizers map[string]int
	err        error
}

func (r *reconciler) note(o *outcome, gvr schema.GroupVersionResource, l left) {
	if l.err != nil {
		o.content = append(o.content, l.err)
	}
	if l.items > 0 {
		o.remaining[gvr] = l.items
	}
	for f, n := range l.finalizers {
		o.finalizers[f] += n
	}
}

func (r *reconciler) emptyOne(ctx context.Context, namespace string, gvr schema.GroupVersionResource,
	verbs metav1.Verbs) left {
	client := r.metadata.Resource(gvr).Namespace(namespace)
	background := metav1.DeletePropagationBackground
	opts := metav1.DeleteOptions{PropagationPolicy: &background}
	collection := slices.Contains(verbs, "deletecollection")
	if collection {
		err := client.DeleteCollection(ctx, opts, metav1.ListOptions{})
		if unsupported(err) {
			collection = false
		} else if err != nil {
			return left{err: fmt.Errorf("delete %s: %w", gvr.GroupResource(), err)}
		}
	}
	if !slices.Contains(verbs, "list") {
		return left{}
	}
	list, err := client.List(ctx, metav1.ListOptions{})
	if unsupported(err) {
		return left{}
	} else if err != nil {
		return left{err: fmt.Errorf("list %s: %w", gvr.GroupResource(), err)}
	}
	l := left{items: len(list.Items), finalizers: map[string]int{}}
	for i := range list.Items {
		item := &list.Items[i]
		for _, f := range item.Finalizers {
			l.finalizers[f]++
		}
		if collection {
			continue
		}
		if err := client.Delete(ctx, item.Name, opts); err != nil && !unsupported(err) {
			l.err = fmt.Errorf("delete %s: %w", gvr.GroupResource(), err)
		}
	}
	return l
}

func unsupported(err error) bool {
	return apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err)
}
