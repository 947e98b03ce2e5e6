package daemonset

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// Failed pods are replaced after a growing time, by node.
const firstBackoff, lastBackoff = time.Second, 15 * time.Minute

var ownKind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

type reconciler struct {
	client  kubernetes.Interface
	events  record.EventRecorder
	sets    appslisters.DaemonSetLister
	nodes   corelisters.NodeLister
	podsIx  cache.Indexer
	history controller.History
	expect  *controller.Expectations
	writes  *controller.Writes
	loop    *controller.Loop
	mu      sync.Mutex
	backoff map[string]map[string]pause // DaemonSet key -> node
}

type pause struct {
	length time.Duration
	from   time.Time
	// generation is the set's: a set that was changed since need not wait.
	generation int64
}

// New builds the DaemonSet controller.
func New(env controller.Env) (*controller.Loop, error) {
	apps, core := env.Informers.Apps().V1(), env.Informers.Core().V1()
	for _, informer := range []cache.SharedIndexInformer{core.Pods().Informer(), apps.ControllerRevisions().Informer()} {
		if err := controller.IndexByController(informer); err != nil {
			return nil, err
		}
	}
	r := &reconciler{
		client: env.Client, events: env.Recorder("daemonset-controller"),
		sets: apps.DaemonSets().Lister(), nodes: core.Nodes().Lister(),
		podsIx: core.Pods().Informer().GetIndexer(),
		history: controller.History{
			Client: env.Client, Revisions: apps.ControllerRevisions().Informer().GetIndexer(), Kind: ownKind,
			HashLabel: appsv1.DefaultDaemonSetUniqueLabelKey,
		},
		expect: controller.NewExpectations(), writes: controller.NewWrites(),
		loop: controller.New("daemonset", 2, env.Log), backoff: map[string]map[string]pause{},
	}
	r.loop.Reconciler = r
	r.loop.WatchKeys(apps.DaemonSets().Informer())
	controller.WatchOwned(r.loop, core.Pods().Informer(), controller.Owned[corev1.Pod]{
		Kind: ownKind,
		Gone: r.expect.Gone,
		Orphan: func(pod *corev1.Pod) {
			all, _ := r.sets.DaemonSets(pod.Namespace).List(labels.Everything())
			controller.AddAdopters(r.loop, all,
				func(ds *appsv1.DaemonSet) *metav1.LabelSelector { return ds.Spec.Selector }, pod)
		},
	})
	controller.Watch(r.loop, core.Nodes().Informer(), r.nodeChanged)
	controller.WatchOwned(r.loop, apps.ControllerRevisions().Informer(),
		controller.Owned[appsv1.ControllerRevision]{Kind: ownKind})
	return r.loop, nil
}

// nodeChanged wakes the sets for which the node counts otherwise than before.
// A node's heartbeats change neither labels nor taints.
func (r *reconciler) nodeChanged(old, node *corev1.Node) {
	if old != nil && node != nil && equality.Semantic.DeepEqual(old.Labels, node.Labels) &&
		equality.Semantic.DeepEqual(old.Spec.Taints, node.Spec.Taints) {
		return
	}
	sets, _ := r.sets.List(labels.Everything())
	for _, ds := range sets {
		if old != nil && node != nil {
			p := placementOf(ds)
			runBefore, stayBefore := p.on(old)
			if run, stay := p.on(node); run == runBefore && stay == stayBefore {
				continue
			}
		}
		r.loop.Add(controller.Key(ds.Namespace, ds.Name))
	}
}

// Reconcile takes one DaemonSet one step further.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	ds, err := r.sets.DaemonSets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		r.forget(key)
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if everything := (metav1.LabelSelector{}); equality.Semantic.DeepEqual(ds.Spec.Selector, &everything) {
		r.events.Event(ds, corev1.EventTypeWarning, "SelectingAll", "This daemon set is selecting all pods. A non-empty selector is required.")
		return 0, nil
	}
	if ds.DeletionTimestamp != nil || r.writes.Behind(key, ds.ResourceVersion) {
		return 0, nil
	}
	revisions, err := r.revisions(ctx, ds)
	if err != nil {
		return 0, fmt.Errorf("revisions: %w", err)
	}
	v, err := r.view(ctx, ds, revisions.Update.Labels[appsv1.DefaultDaemonSetUniqueLabelKey])
	if err != nil {
		return 0, err
	}
	met, after := r.expect.Met(key, controller.ShownPods(r.podsIx, ds.UID), v.now)
	var syncErr error
	if met {
		after, syncErr = r.sync(ctx, key, v)
	}
	if met && syncErr == nil {
		if err := r.trim(ctx, v, revisions.Old); err != nil {
			return 0, err
		}
	}
	status, wait := v.status()
	status.CollisionCount = revisions.Collisions
	if err := r.writeStatus(ctx, ds, status); err != nil {
		return 0, err
	}
	return controller.Sooner(after, wait), syncErr
}

func (r *reconciler) live(ds *appsv1.DaemonSet) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		return r.client.AppsV1().DaemonSets(ds.Namespace).Get(ctx, ds.Name, metav1.GetOptions{})
	}
}

func (r *reconciler) view(ctx context.Context, ds *appsv1.DaemonSet, hash string) (*view, error) {
	selector, err := metav1.LabelSelectorAsSelector(ds.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	claimed, err := controller.Claim(ctx, &controller.Claimer{
		Owner: ds, Kind: ownKind, Selector: selector, Live: r.live(ds),
		Patch: func(ctx context.Context, name string, patch []byte) error {
			_, err := r.client.CoreV1().Pods(ds.Namespace).Patch(ctx, name, types.StrategicMergePatchType,
				patch, metav1.PatchOptions{})
			return err
		},
	}, controller.Candidates[corev1.Pod](r.podsIx, ds))
	if err != nil {
		return nil, err
	}
	nodes, err := r.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	v := &view{ds: ds, nodes: nodes, place: placementOf(ds), hash: hash, now: time.Now()}
	v.take(claimed)
	return v, nil
}

// sync manages, and rolls on when nothing had to be managed.
func (r *reconciler) sync(ctx context.Context, key string, v *view) (time.Duration, error) {
	do := v.manage()
	wait := r.failedPods(key, v, &do)
	for _, p := range do.succeeded {
		r.events.Eventf(v.ds, corev1.EventTypeNormal, "SucceededDaemonPod",
			"Found succeeded daemon pod %s/%s on node %s, will try to delete it", p.Namespace, p.Name, target(p))
		do.del = append(do.del, p)
	}
	if len(do.create)+len(do.del) == 0 && v.ds.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		do = v.roll()
	}
	if err := r.create(ctx, key, v, do.create[:min(len(do.create), burst)]); err != nil {
		return wait, err
	}
	return wait, r.delete(ctx, key, v, do.del[:min(len(do.del), burst)])
}

// failedPods moves the failed pods whose time has come to those to delete.
func (r *reconciler) failedPods(key string, v *view, do *todo) (wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	nodes := r.backoff[key]
	if nodes == nil {
		nodes = map[string]pause{}
		r.backoff[key] = nodes
	}
	for node, pod := range do.failed {
		p := nodes[node]
		if p.generation != v.ds.Generation {
			p = pause{}
		}
		if left := p.from.Add(p.length).Sub(v.now); left > 0 {
			wait = controller.Sooner(wait, left)
			continue
		}
		length := firstBackoff
		if !p.from.IsZero() && v.now.Sub(p.from) < 2*lastBackoff {
			length = min(2*p.length, lastBackoff)
		}
		nodes[node] = pause{length, v.now, v.ds.Generation}
		r.events.Eventf(v.ds, corev1.EventTypeWarning, "FailedDaemonPod",
			"Found failed daemon pod %s/%s on node %s, will try to kill it", pod.Namespace, pod.Name, node)
		do.del = append(do.del, pod)
	}
	return wait
}

func (r *reconciler) create(ctx context.Context, key string, v *view, nodes []string) error {
	_, err := controller.SlowStart(ctx, len(nodes), func(ctx context.Context, i int) error {
		_, err := r.writer().Create(ctx, key, v.ds, newPod(v.ds, nodes[i], v.hash))
		return err
	})
	return err
}

func (r *reconciler) delete(ctx context.Context, key string, v *view, pods []*corev1.Pod) error {
	_, err := controller.Each(ctx, 0, len(pods), func(ctx context.Context, i int) error {
		return r.writer().Delete(ctx, key, v.ds, pods[i])
	})
	return err
}

func (r *reconciler) writer() controller.PodWriter {
	return controller.PodWriter{Client: r.client, Events: r.events, Expect: r.expect}
}

func (r *reconciler) writeStatus(ctx context.Context, ds *appsv1.DaemonSet, status appsv1.DaemonSetStatus) error {
	if equality.Semantic.DeepEqual(ds.Status, status) {
		return nil
	}
	changed := *ds
	changed.Status = status
	updated, err := r.client.AppsV1().DaemonSets(ds.Namespace).UpdateStatus(ctx, &changed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		r.writes.Wrote(controller.Key(ds.Namespace, ds.Name), updated.ResourceVersion)
	}
	return err
}

func (r *reconciler) forget(key string) {
	r.expect.Forget(key)
	r.writes.Forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.backoff, key)
}
