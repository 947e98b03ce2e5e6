package statefulset

import (
	"context"
	"fmt"
	"strings"
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
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/controller"
)

var ownKind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

type reconciler struct {
	client  kubernetes.Interface
	events  record.EventRecorder
	sets    appslisters.StatefulSetLister
	claims  corelisters.PersistentVolumeClaimLister
	pods    cache.Indexer
	history controller.History
	expect  *controller.Expectations
	writes  *controller.Writes
	loop    *controller.Loop
}

// New builds the StatefulSet controller.
func New(env controller.Env) (*controller.Loop, error) {
	apps, core := env.Informers.Apps().V1(), env.Informers.Core().V1()
	for _, informer := range []cache.SharedIndexInformer{core.Pods().Informer(), apps.ControllerRevisions().Informer()} {
		if err := controller.IndexByController(informer); err != nil {
			return nil, err
		}
	}
	r := &reconciler{
		client: env.Client, events: env.Recorder("statefulset-controller"),
		sets: apps.StatefulSets().Lister(), claims: core.PersistentVolumeClaims().Lister(),
		pods: core.Pods().Informer().GetIndexer(),
		history: controller.History{
			Client: env.Client, Revisions: apps.ControllerRevisions().Informer().GetIndexer(), Kind: ownKind,
			HashLabel: "controller.kubernetes.io/hash",
		},
		expect: controller.NewExpectations(), writes: controller.NewWrites(),
		loop: controller.New("statefulset", 5, env.Log),
	}
	r.loop.Reconciler = r
	r.loop.WatchKeys(apps.StatefulSets().Informer())
	r.loop.Needs(apps.ControllerRevisions().Informer())
	controller.WatchOwned(r.loop, core.Pods().Informer(), controller.Owned[corev1.Pod]{
		Kind:     ownKind,
		Gone:     r.expect.Gone,
		Orphan:   r.wakeNamed, // it may adopt the pod
		NameFree: r.wakeNamed,
	})
	controller.Watch(r.loop, core.PersistentVolumeClaims().Informer(), func(old, claim *corev1.PersistentVolumeClaim) {
		if claim == nil {
			r.claimGone(old)
		}
	})
	return r.loop, nil
}

// wakeNamed wakes the set that the pod's name belongs to.
func (r *reconciler) wakeNamed(pod *corev1.Pod) {
	parent, _, ok := parse(pod.Name)
	if !ok {
		return
	}
	if _, err := r.sets.StatefulSets(pod.Namespace).Get(parent); err == nil {
		r.loop.Add(controller.Key(pod.Namespace, parent))
	}
}

// claimGone wakes the set that a claim's name belongs to: it may wait to make
// the claim again.
func (r *reconciler) claimGone(claim *corev1.PersistentVolumeClaim) {
	sets, _ := r.sets.StatefulSets(claim.Namespace).List(labels.Everything())
	for _, set := range sets {
		for i := range set.Spec.VolumeClaimTemplates {
			if strings.HasPrefix(claim.Name, set.Spec.VolumeClaimTemplates[i].Name+"-"+set.Name+"-") {
				r.loop.Add(controller.Key(set.Namespace, set.Name))
			}
		}
	}
}

// Reconcile takes one StatefulSet one step further.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	set, err := r.sets.StatefulSets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		r.expect.Forget(key)
		r.writes.Forget(key)
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if r.writes.Behind(key, set.ResourceVersion) {
		return 0, nil
	}
	revisions, err := r.revisions(ctx, set)
	if err != nil {
		return 0, fmt.Errorf("revisions: %w", err)
	}
	v, err := r.view(ctx, set, revisions)
	if err != nil {
		return 0, err
	}
	met, after := r.expect.Met(key, controller.ShownPods(r.pods, set.UID), v.now)
	var done error
	if met {
		done = r.do(ctx, key, v, revisions)
	}
	status, wait := v.status()
	status.CollisionCount = ptr.To(ptr.Deref(revisions.Collisions, 0))
	if err := r.writeStatus(ctx, key, set, status); err != nil {
		return 0, err
	}
	if done == nil && set.DeletionTimestamp == nil {
		done = r.trim(ctx, v, revisions)
	}
	if after == 0 || wait > 0 && wait < after {
		after = wait
	}
	return after, done
}

// revisions are the set's; a set that is being deleted makes no new ones.
func (r *reconciler) revisions(ctx context.Context, set *appsv1.StatefulSet) (controller.Revisions, error) {
	if set.DeletionTimestamp != nil {
		return controller.Revisions{Collisions: set.Status.CollisionCount}, nil
	}
	return r.history.Sync(ctx, controller.Revised{
		Owner: set, Template: &set.Spec.Template, Selector: set.Spec.Selector,
		Collisions: set.Status.CollisionCount, Live: r.live(set),
	})
}

func (r *reconciler) live(set *appsv1.StatefulSet) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		return r.client.AppsV1().StatefulSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	}
}

func (r *reconciler) view(ctx context.Context, set *appsv1.StatefulSet, revisions controller.Revisions) (*view, error) {
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	var members []*corev1.Pod
	for _, p := range controller.Candidates[corev1.Pod](r.pods, set) {
		if isMember(set, p) {
			members = append(members, p)
		}
	}
	pods, err := controller.Claim(ctx, &controller.Claimer{
		Owner: set, Kind: ownKind, Selector: selector, Live: r.live(set),
		Patch: func(ctx context.Context, name string, patch []byte) error {
			_, err := r.client.CoreV1().Pods(set.Namespace).Patch(ctx, name, types.StrategicMergePatchType,
				patch, metav1.PatchOptions{})
			return err
		},
	}, members)
	if err != nil {
		return nil, err
	}
	v := &view{set: set, pods: pods, now: time.Now(), current: set.Status.CurrentRevision,
		update: set.Status.UpdateRevision}
	if revisions.Update != nil {
		v.update = revisions.Update.Name
		if revisions.Named(v.current) == nil {
			v.current = v.update
		}
	}
	v.claim = func(name string) *corev1.PersistentVolumeClaim {
		c, err := r.claims.PersistentVolumeClaims(set.Namespace).Get(name)
		if err != nil { // a lister knows no error but that there is none
			return nil
		}
		return c
	}
	return v, nil
}

// trim deletes revisions beyond revisionHistoryLimit that nobody has; a
// negative limit keeps all.
func (r *reconciler) trim(ctx context.Context, v *view, revisions controller.Revisions) error {
	live := map[string]bool{v.current: true}
	for _, p := range v.pods {
		live[p.Labels[appsv1.StatefulSetRevisionLabel]] = true
	}
	return r.history.Trim(ctx, revisions.Old, int(ptr.Deref(v.set.Spec.RevisionHistoryLimit, 10)),
		func(rev *appsv1.ControllerRevision) bool { return live[rev.Name] })
}

func (r *reconciler) writeStatus(ctx context.Context, key string, set *appsv1.StatefulSet,
	status appsv1.StatefulSetStatus) error {
	if equality.Semantic.DeepEqual(set.Status, status) {
		return nil
	}
	changed := *set
	changed.Status = status
	updated, err := r.client.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, &changed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		r.writes.Wrote(key, updated.ResourceVersion)
	}
	return err
}
