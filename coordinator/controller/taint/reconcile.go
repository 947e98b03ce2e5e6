package taint

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

type reconciler struct {
	client kubernetes.Interface
	events record.EventRecorder
	pods   corelisters.PodLister
	podsIx cache.Indexer
	nodes  corelisters.NodeLister
	loop   *controller.Loop
	mu     sync.Mutex
	// seen is when a pod's eviction was first thought of, for taints without
	// timeAdded and for the event that tells of its end.
	seen map[types.UID]time.Time
}

// New builds the controller; its keys are pods.
func New(env controller.Env) (*controller.Loop, error) {
	core := env.Informers.Core().V1()
	if err := controller.IndexPodsByNode(core.Pods().Informer()); err != nil {
		return nil, err
	}
	r := &reconciler{
		client: env.Client, events: env.Recorder("taint-eviction-controller"),
		pods: core.Pods().Lister(), podsIx: core.Pods().Informer().GetIndexer(), nodes: core.Nodes().Lister(),
		loop: controller.New("taint-eviction", 4, env.Log), seen: map[types.UID]time.Time{},
	}
	r.loop.Reconciler = r
	controller.Watch(r.loop, core.Pods().Informer(), r.podChanged)
	controller.Watch(r.loop, core.Nodes().Informer(), r.nodeChanged)
	return r.loop, nil
}

func (r *reconciler) podChanged(old, pod *corev1.Pod) {
	if pod == nil {
		r.forget(old.UID)
		return
	}
	if pod.Spec.NodeName == "" || old != nil && old.Spec.NodeName == pod.Spec.NodeName &&
		old.Generation == pod.Generation {
		return
	}
	if node, err := r.nodes.Get(pod.Spec.NodeName); err == nil && hasNoExecute(node) {
		r.loop.Add(controller.Key(pod.Namespace, pod.Name))
	}
}

func (r *reconciler) nodeChanged(old, node *corev1.Node) {
	if node == nil || !hasNoExecute(node) && (old == nil || !hasNoExecute(old)) {
		return
	}
	for _, p := range controller.PodsOnNode(r.podsIx, node.Name) {
		r.loop.Add(controller.Key(p.Namespace, p.Name))
	}
}

// Reconcile evicts one pod when it is due.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
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
	node, err := r.nodes.Get(pod.Spec.NodeName)
	if apierrors.IsNotFound(err) || pod.DeletionTimestamp != nil {
		r.forget(pod.UID)
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	now := time.Now()
	at, evict := plan(pod.Spec.Tolerations, node.Spec.Taints, r.since(pod.UID, now))
	if !evict {
		if r.forget(pod.UID) && !hasNoExecute(node) {
			r.tell(pod, "Cancelling deletion of Pod %s")
		}
		return 0, nil
	}
	if wait := at.Sub(now); wait > 0 {
		return wait, nil
	}
	r.tell(pod, "Marking for deletion Pod %s")
	return 0, r.evict(ctx, pod)
}

func (r *reconciler) tell(pod *corev1.Pod, message string) {
	r.events.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", message, pod.Namespace+"/"+pod.Name)
}

func (r *reconciler) since(uid types.UID, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.seen[uid]; !ok {
		r.seen[uid] = now
	}
	return r.seen[uid]
}

func (r *reconciler) forget(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.seen[uid]
	delete(r.seen, uid)
	return ok
}

func (r *reconciler) evict(ctx context.Context, pod *corev1.Pod) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
			ObservedGeneration: pod.Generation,
			Reason:             "DeletionByTaintManager",
			Message:            "Taint manager: deleting due to NoExecute taint",
		}}},
	})
	if err != nil {
		return err
	}
	pods := r.client.CoreV1().Pods(pod.Namespace)
	_, err = pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil {
		err = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
