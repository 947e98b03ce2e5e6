package replicaset

import (
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

type reconciler struct {
	client kubernetes.Interface
	events record.EventRecorder
	sets   sets
	kind   schema.GroupVersionKind
	setsIx cache.Indexer
	podsIx cache.Indexer
	expect *controller.Expectations
	writes *controller.Writes
	loop   *controller.Loop
}

// New builds the ReplicaSet controller.
func New(env controller.Env) (*controller.Loop, error) {
	informer := env.Informers.Apps().V1().ReplicaSets()
	r := &reconciler{
		client: env.Client, events: env.Recorder("replicaset-controller"), kind: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
		sets: replicaSets{env.Client, informer.Lister()}, loop: controller.New("replicaset", 5, env.Log),
	}
	return r.loop, r.watch(informer.Informer(), env.Informers.Core().V1().Pods().Informer())
}

// NewReplication builds the ReplicationController controller. One is handled as
// a ReplicaSet of another kind.
func NewReplication(env controller.Env) (*controller.Loop, error) {
	informer := env.Informers.Core().V1().ReplicationControllers()
	r := &reconciler{
		client: env.Client, events: env.Recorder("replication-controller"), kind: replicationKind,
		sets: replicationControllers{env.Client, informer.Lister()},
		loop: controller.New("replicationcontroller", 5, env.Log),
	}
	return r.loop, r.watch(informer.Informer(), env.Informers.Core().V1().Pods().Informer())
}

func (r *reconciler) watch(sets, pods cache.SharedIndexInformer) error {
	for _, informer := range []cache.SharedIndexInformer{sets, pods} {
		if err := controller.IndexByController(informer); err != nil {
			return err
		}
	}
	r.setsIx, r.podsIx = sets.GetIndexer(), pods.GetIndexer()
	r.expect, r.writes = controller.NewExpectations(), controller.NewWrites()
	r.loop.Reconciler = r
	r.loop.WatchKeys(sets)
	controller.WatchOwned(r.loop, pods, controller.Owned[corev1.Pod]{
		Kind: r.kind,
		Gone: r.expect.Gone,
		Orphan: func(pod *corev1.Pod) {
			selector := func(rs *appsv1.ReplicaSet) *metav1.LabelSelector { return rs.Spec.Selector }
			controller.AddAdopters(r.loop, r.sets.list(pod.Namespace), selector, pod)
		},
	})
	return nil
}

// Reconcile brings one ReplicaSet's pods to its replica count.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	rs, err := r.sets.get(namespace, name)
	if apierrors.IsNotFound(err) {
		r.expect.Forget(key)
		r.writes.Forget(key)
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if r.writes.Behind(key, rs.ResourceVersion) {
		return 0, nil
	}
	active, terminating, err := r.pods(ctx, rs)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	c := counted{active: active, terminating: terminating}
	met, wait := r.expect.Met(key, controller.ShownPods(r.podsIx, rs.UID), now)
	if met && rs.DeletionTimestamp == nil {
		c = r.manage(ctx, key, rs, c, now)
	}
	status, available := statusOf(rs, c, now)
	if err := r.writeStatus(ctx, rs, status); err != nil {
		return 0, err
	}
	if available > 0 && (wait == 0 || available < wait) {
		wait = available
	}
	return wait, c.failure
}

// pods returns the claimed active pods and counts the terminating ones.
func (r *reconciler) pods(ctx context.Context, rs *appsv1.ReplicaSet) (active []*corev1.Pod, terminating int, err error) {
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		return nil, 0, fmt.Errorf("selector: %w", err)
	}
	var candidates []*corev1.Pod
	for _, p := range controller.Candidates[corev1.Pod](r.podsIx, rs) {
		switch {
		case controller.PodActive(p):
			candidates = append(candidates, p)
		case !controller.PodTerminal(p) && metav1.IsControlledBy(p, rs) && selector.Matches(labels.Set(p.Labels)):
			terminating++
		}
	}
	active, err = controller.Claim(ctx, &controller.Claimer{
		Owner: rs, Kind: r.kind, Selector: selector,
		Live: func(ctx context.Context) (metav1.Object, error) {
			return r.sets.live(ctx, rs.Namespace, rs.Name)
		},
		Patch: func(ctx context.Context, name string, patch []byte) error {
			_, err := r.client.CoreV1().Pods(rs.Namespace).Patch(ctx, name, types.StrategicMergePatchType,
				patch, metav1.PatchOptions{})
			return err
		},
	}, candidates)
	return active, terminating, err
}

// manage creates or deletes pods and returns the pods as they are then.
func (r *reconciler) manage(ctx context.Context, key string, rs *appsv1.ReplicaSet, c counted, now time.Time) counted {
	var related []*corev1.Pod
	if n := int(replicas(rs)); len(c.active) > n && n > 0 {
		related = r.related(rs, c.active)
	}
	create, del := plan(rs, c.active, related, now)
	if create > 0 {
		created, err := r.create(ctx, key, rs, create)
		c.active, c.failure = append(c.active, created...), err
	}
	if len(del) > 0 {
		c.failure = r.delete(ctx, key, rs, del)
	}
	return c
}

func (r *reconciler) create(ctx context.Context, key string, rs *appsv1.ReplicaSet, count int) ([]*corev1.Pod, error) {
	var (
		mu      sync.Mutex
		created []*corev1.Pod
	)
	ref := metav1.NewControllerRef(rs, r.kind)
	_, err := controller.SlowStart(ctx, count, func(ctx context.Context, _ int) error {
		pod, err := r.writer().Create(ctx, key, rs, controller.NewPod(&rs.Spec.Template, rs, ref))
		if pod == nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		created = append(created, pod)
		return nil
	})
	return created, err
}

func (r *reconciler) delete(ctx context.Context, key string, rs *appsv1.ReplicaSet, pods []*corev1.Pod) error {
	_, err := controller.Each(ctx, 0, len(pods), func(ctx context.Context, i int) error {
		return r.writer().Delete(ctx, key, rs, pods[i])
	})
	return err
}

func (r *reconciler) writer() controller.PodWriter {
	return controller.PodWriter{Client: r.client, Events: r.events, Expect: r.expect}
}

// related are the active pods of the ReplicaSets with the same controller.
func (r *reconciler) related(rs *appsv1.ReplicaSet, own []*corev1.Pod) []*corev1.Pod {
	ref := metav1.GetControllerOfNoCopy(rs)
	if ref == nil {
		return own
	}
	var pods []*corev1.Pod
	for _, sibling := range controller.Controlled[appsv1.ReplicaSet](r.setsIx, ref.UID) {
		for _, p := range controller.Controlled[corev1.Pod](r.podsIx, sibling.UID) {
			if controller.PodActive(p) {
				pods = append(pods, p)
			}
		}
	}
	return pods
}

func (r *reconciler) writeStatus(ctx context.Context, rs *appsv1.ReplicaSet, status appsv1.ReplicaSetStatus) error {
	if r.kind == replicationKind {
		status.TerminatingReplicas = nil
	}
	if equality.Semantic.DeepEqual(rs.Status, status) {
		return nil
	}
	changed := *rs
	changed.Status = status
	updated, err := r.sets.writeStatus(ctx, &changed)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		r.writes.Wrote(controller.Key(rs.Namespace, rs.Name), updated.GetResourceVersion())
	}
	return err
}
