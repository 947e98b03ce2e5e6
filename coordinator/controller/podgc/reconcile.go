package podgc

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// finishedKey is the key under which finished pods are counted; it is no pod's.
const finishedKey = "//finished"

type reconciler struct {
	client   kubernetes.Interface
	pods     corelisters.PodLister
	podsIx   cache.Indexer
	nodes    corelisters.NodeLister
	loop     *controller.Loop
	limit    int // of finished pods; 0 and less: none
	finished atomic.Int64
	mu       sync.Mutex
	missing  map[string]time.Time // node -> since when it is known to be gone
}

// New builds the controller; its keys are pods. Of finished pods limit stay, all if it is 0
// or less.
func New(env controller.Env, limit int) (*controller.Loop, error) {
	core := env.Informers.Core().V1()
	if err := controller.IndexPodsByNode(core.Pods().Informer()); err != nil {
		return nil, err
	}
	r := &reconciler{
		client: env.Client, pods: core.Pods().Lister(), podsIx: core.Pods().Informer().GetIndexer(),
		nodes: core.Nodes().Lister(),
		loop:  controller.New("podgc", 2, env.Log), limit: limit, missing: map[string]time.Time{},
	}
	r.loop.Reconciler = r
	controller.Watch(r.loop, core.Pods().Informer(), r.podChanged)
	controller.Watch(r.loop, core.Nodes().Informer(), r.nodeChanged)
	return r.loop, nil
}

func (r *reconciler) podChanged(old, pod *corev1.Pod) {
	r.countFinished(old, pod)
	if pod == nil {
		return
	}
	_, err := r.nodes.Get(pod.Spec.NodeName)
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName != "" && apierrors.IsNotFound(err) {
		r.loop.Add(controller.Key(pod.Namespace, pod.Name))
	}
}

func (r *reconciler) countFinished(old, pod *corev1.Pod) {
	was, is := old != nil && controller.PodTerminal(old), pod != nil && controller.PodTerminal(pod)
	switch {
	case is && !was:
		if n := r.finished.Add(1); r.limit > 0 && n > int64(r.limit) {
			r.loop.Add(finishedKey)
		}
	case was && !is:
		r.finished.Add(-1)
	}
}

func (r *reconciler) nodeChanged(old, node *corev1.Node) {
	if node == nil {
		r.wakeNode(old.Name)
		return
	}
	r.mu.Lock()
	delete(r.missing, node.Name)
	r.mu.Unlock()
	if outOfService(node) {
		r.wakeNode(node.Name)
	}
}

func (r *reconciler) wakeNode(name string) {
	for _, p := range controller.PodsOnNode(r.podsIx, name) {
		r.loop.Add(controller.Key(p.Namespace, p.Name))
	}
}

// Reconcile deletes one pod if it must go.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	if key == finishedKey {
		return 0, r.trim(ctx)
	}
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	pod, err := r.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	node, missing, err := r.node(ctx, pod.Spec.NodeName)
	if err != nil {
		return 0, err
	}
	kill, after := plan(pod, node, missing, time.Now())
	if kill == nil {
		return after, nil
	}
	return 0, r.kill(ctx, kill)
}

// node finds a pod's node, past the cache when it seems gone.
func (r *reconciler) node(ctx context.Context, name string) (node *corev1.Node, missing time.Time, err error) {
	if name == "" {
		return nil, time.Time{}, nil
	}
	node, err = r.nodes.Get(name)
	if err == nil || !apierrors.IsNotFound(err) {
		return node, time.Time{}, err
	}
	node, err = r.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	r.mu.Lock()
	defer r.mu.Unlock()
	if !apierrors.IsNotFound(err) {
		delete(r.missing, name)
		return node, time.Time{}, err
	}
	since, ok := r.missing[name]
	if !ok {
		since = time.Now()
		r.missing[name] = since
	}
	return nil, since, nil
}

func (r *reconciler) kill(ctx context.Context, d *doomed) error {
	if !controller.PodTerminal(d.pod) {
		status := map[string]any{"phase": corev1.PodFailed, "observedGeneration": d.pod.Generation}
		if d.condition != nil {
			c := *d.condition
			c.LastTransitionTime, c.ObservedGeneration = metav1.Now(), d.pod.Generation
			status["conditions"] = []corev1.PodCondition{c}
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": d.pod.UID}, "status": status})
		if err != nil {
			return err
		}
		_, err = r.client.CoreV1().Pods(d.pod.Namespace).Patch(ctx, d.pod.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{}, "status")
		if apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return err
		}
	}
	zero := int64(0)
	err := r.client.CoreV1().Pods(d.pod.Namespace).Delete(ctx, d.pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &d.pod.UID},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// trim deletes the finished pods beyond the limit.
func (r *reconciler) trim(ctx context.Context) error {
	pods, err := r.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, p := range surplus(pods, r.limit) {
		if err := r.kill(ctx, &doomed{pod: p}); err != nil {
			return err
		}
	}
	return nil
}
