package deployment

import (
	"context"
	"fmt"
	"strconv"
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
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

var (
	ownKind = appsv1.SchemeGroupVersion.WithKind("Deployment")
	setKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
)

type reconciler struct {
	client      kubernetes.Interface
	events      record.EventRecorder
	deployments appslisters.DeploymentLister
	sets        appslisters.ReplicaSetLister
	setsIx      cache.Indexer
	podsIx      cache.Indexer
	writes      *controller.Writes
	loop        *controller.Loop
}

// New builds the Deployment controller.
func New(env controller.Env) (*controller.Loop, error) {
	apps, pods := env.Informers.Apps().V1(), env.Informers.Core().V1().Pods().Informer()
	for _, informer := range []cache.SharedIndexInformer{apps.ReplicaSets().Informer(), pods} {
		if err := controller.IndexByController(informer); err != nil {
			return nil, err
		}
	}
	r := &reconciler{
		client: env.Client, events: env.Recorder("deployment-controller"),
		deployments: apps.Deployments().Lister(), sets: apps.ReplicaSets().Lister(),
		setsIx: apps.ReplicaSets().Informer().GetIndexer(), podsIx: pods.GetIndexer(),
		writes: controller.NewWrites(), loop: controller.New("deployment", 5, env.Log),
	}
	r.loop.Reconciler = r
	r.loop.WatchKeys(apps.Deployments().Informer())
	controller.WatchOwned(r.loop, apps.ReplicaSets().Informer(), controller.Owned[appsv1.ReplicaSet]{
		Kind: ownKind,
		Orphan: func(rs *appsv1.ReplicaSet) {
			all, _ := r.deployments.Deployments(rs.Namespace).List(labels.Everything())
			controller.AddAdopters(r.loop, all,
				func(d *appsv1.Deployment) *metav1.LabelSelector { return d.Spec.Selector }, rs)
		},
	})
	controller.Watch(r.loop, pods, r.podChanged)
	return r.loop, nil
}

// podChanged wakes a Recreate Deployment when one of its pods is gone or over:
// the new ones wait for that.
func (r *reconciler) podChanged(old, pod *corev1.Pod) {
	if pod != nil && !(controller.PodTerminal(pod) && (old == nil || !controller.PodTerminal(old))) {
		return
	}
	if pod == nil {
		pod = old
	}
	key, ok := controller.OwnerKey(pod, setKind)
	if !ok {
		return
	}
	obj, exists, _ := r.setsIx.GetByKey(key)
	if rs, is := obj.(*appsv1.ReplicaSet); exists && is {
		if key, ok := controller.OwnerKey(rs, ownKind); ok {
			namespace, name, _ := cache.SplitMetaNamespaceKey(key)
			if d, err := r.deployments.Deployments(namespace).Get(name); err == nil && !rolling(d) {
				r.loop.Add(key)
			}
		}
	}
}

// Reconcile takes one Deployment one step further; the ReplicaSets' answers
// bring the next step.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	cached, err := r.deployments.Deployments(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		r.writes.Forget(key)
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if r.writes.Behind(key, cached.ResourceVersion) {
		return 0, nil
	}
	if everything := (metav1.LabelSelector{}); equality.Semantic.DeepEqual(cached.Spec.Selector, &everything) {
		r.events.Eventf(cached, corev1.EventTypeWarning, "SelectingAll", "This deployment is selecting all pods. A non-empty selector is required.")
		return 0, nil
	}
	owned, err := r.claim(ctx, cached)
	if err != nil {
		return 0, err
	}
	st := &step{reconciler: r, cached: cached, d: cached.DeepCopy(), sets: split(cached, owned), now: time.Now()}
	err = st.run(ctx)
	if werr := st.writeStatus(ctx); err == nil {
		err = werr
	}
	return st.wait, err
}

func (r *reconciler) claim(ctx context.Context, d *appsv1.Deployment) ([]*appsv1.ReplicaSet, error) {
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	return controller.Claim(ctx, &controller.Claimer{
		Owner: d, Kind: ownKind, Selector: selector,
		Live: func(ctx context.Context) (metav1.Object, error) {
			return r.client.AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, name string, patch []byte) error {
			_, err := r.client.AppsV1().ReplicaSets(d.Namespace).Patch(ctx, name, types.StrategicMergePatchType,
				patch, metav1.PatchOptions{})
			return err
		},
	}, controller.Candidates[appsv1.ReplicaSet](r.setsIx, d))
}

// step is one reconcile of one Deployment. d is a private copy that collects
// the status (and revision annotation) to write at the end.
type step struct {
	*reconciler
	cached, d *appsv1.Deployment
	sets      sets
	now       time.Time
	wait      time.Duration
}

func (s *step) run(ctx context.Context) error {
	if s.d.DeletionTimestamp != nil {
		s.d.Status = counts(s.d, s.sets, s.now)
		return nil
	}
	if c := paused(s.d, s.now); c != nil {
		setCondition(&s.d.Status, *c)
	}
	if err := s.syncRevision(ctx); err != nil {
		return err
	}
	to, back := rollbackTo(s.d)
	switch {
	case s.d.Spec.Paused:
		return s.resize(ctx)
	case back:
		return s.rollBack(ctx, to)
	case resized(s.d, s.sets):
		return s.resize(ctx)
	case rolling(s.d):
		return s.roll(ctx)
	}
	return s.recreate(ctx)
}

// syncRevision keeps revision, annotations and minReadySeconds of the current
// set up to date, and tells its revision on the Deployment.
func (s *step) syncRevision(ctx context.Context) error {
	rs := s.sets.current
	if rs == nil {
		return nil
	}
	changed := rs.DeepCopy()
	if annotate(changed, s.d, nextRevision(s.sets.old)) || rs.Spec.MinReadySeconds != s.d.Spec.MinReadySeconds {
		changed.Spec.MinReadySeconds = s.d.Spec.MinReadySeconds
		updated, err := s.client.AppsV1().ReplicaSets(rs.Namespace).Update(ctx, changed, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		s.sets.current = updated
	}
	s.setRevision(s.sets.current.Annotations[revisionAnnotation])
	if hasDeadline(s.d) && find(&s.d.Status, appsv1.DeploymentProgressing) == nil {
		s.progressing(corev1.ConditionTrue, reasonFound, fmt.Sprintf("Found new replica set %q", rs.Name))
	}
	return nil
}

func (s *step) setRevision(revision string) {
	if s.d.Annotations == nil {
		s.d.Annotations = map[string]string{}
	}
	s.d.Annotations[revisionAnnotation] = revision
}

func (s *step) progressing(status corev1.ConditionStatus, reason, message string) {
	if hasDeadline(s.d) {
		setCondition(&s.d.Status, condition(appsv1.DeploymentProgressing, status, reason, message, s.now))
	}
}

func (s *step) resize(ctx context.Context) error {
	_, err := s.scale(ctx, spread(s.d, s.sets))
	if err == nil && s.d.Spec.Paused {
		err = s.cleanup(ctx)
	}
	s.d.Status = counts(s.d, s.sets, s.now)
	return err
}

func (s *step) roll(ctx context.Context) error {
	if err := s.ensureCurrent(ctx); err != nil {
		return err
	}
	scaled, err := s.scale(ctx, roll(s.d, s.sets))
	return s.finish(ctx, scaled, err)
}

// rollBack gives the Deployment the template of a former revision.
func (s *step) rollBack(ctx context.Context, to int64) error {
	if err := s.ensureCurrent(ctx); err != nil {
		return err
	}
	d := s.d.DeepCopy()
	level, reason, message := rollBack(d, s.sets, to)
	updated, err := s.client.AppsV1().Deployments(d.Namespace).Update(ctx, d, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	s.writes.Wrote(controller.Key(d.Namespace, d.Name), updated.ResourceVersion)
	s.events.Event(updated, level, reason, message)
	s.cached, s.d = updated, updated // the status is the next step's
	return nil
}

// recreate scales all old sets to 0, waits for their pods to be gone, and only
// then makes the new set.
func (s *step) recreate(ctx context.Context) error {
	var down []scaling
	for _, rs := range s.sets.old {
		down = append(down, only(rs, 0)...)
	}
	if scaled, err := s.scale(ctx, down); scaled || err != nil || s.oldPodsRun() {
		s.d.Status, s.wait = progress(s.d, s.sets, s.now)
		return err
	}
	if err := s.ensureCurrent(ctx); err != nil {
		return err
	}
	scaled, err := s.scale(ctx, only(s.sets.current, want(s.d)))
	return s.finish(ctx, scaled, err)
}

func (s *step) oldPodsRun() bool {
	for _, rs := range s.sets.old {
		if rs.Status.Replicas > 0 {
			return true
		}
		for _, pod := range controller.Controlled[corev1.Pod](s.podsIx, rs.UID) {
			if !controller.PodTerminal(pod) {
				return true
			}
		}
	}
	return false
}

func (s *step) finish(ctx context.Context, scaled bool, err error) error {
	if err == nil && !scaled && complete(s.d, &s.d.Status) {
		err = s.cleanup(ctx)
	}
	s.d.Status, s.wait = progress(s.d, s.sets, s.now)
	return err
}

// ensureCurrent creates the set of the Deployment's template.
func (s *step) ensureCurrent(ctx context.Context) error {
	if s.sets.current != nil {
		return nil
	}
	rs, err := newSet(s.d, s.sets, metav1.NewControllerRef(s.d, ownKind))
	if err != nil {
		return err
	}
	created, err := s.client.AppsV1().ReplicaSets(rs.Namespace).Create(ctx, rs, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		created, err = s.existing(ctx, rs.Name, err)
		if err != nil {
			return err
		}
		s.setRevision(created.Annotations[revisionAnnotation])
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return err
	case err != nil:
		msg := fmt.Sprintf("Failed to create new replica set %q: %v", rs.Name, err)
		s.progressing(corev1.ConditionFalse, reasonCreateError, msg)
		s.events.Eventf(s.d, corev1.EventTypeWarning, reasonCreateError, "%s", msg)
		return err
	default:
		if n := size(created); n > 0 {
			s.events.Eventf(s.d, corev1.EventTypeNormal, "ScalingReplicaSet",
				"Scaled up replica set %s from 0 to %d", created.Name, n)
		}
		s.setRevision(strconv.FormatInt(revision(created), 10))
		s.progressing(corev1.ConditionTrue, reasonCreated, fmt.Sprintf("Created new replica set %q", created.Name))
	}
	s.sets.current = created
	return nil
}

// existing takes a set that another write made with our name and template; any
// other is a hash collision, which the next hash avoids.
func (s *step) existing(ctx context.Context, name string, exists error) (*appsv1.ReplicaSet, error) {
	rs, err := s.client.AppsV1().ReplicaSets(s.d.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if metav1.IsControlledBy(rs, s.d) && sameTemplate(&rs.Spec.Template, &s.d.Spec.Template) {
		return rs, nil
	}
	n := int32(1)
	if s.d.Status.CollisionCount != nil {
		n += *s.d.Status.CollisionCount
	}
	s.d.Status.CollisionCount = &n
	return nil, exists
}

// scale writes new sizes and their annotations; it reports whether a size
// changed.
func (s *step) scale(ctx context.Context, list []scaling) (bool, error) {
	scaled := false
	for _, sc := range list {
		changed := sc.set.DeepCopy()
		from := size(sc.set)
		changed.Spec.Replicas = &sc.to
		if !setSizeAnnotations(changed, s.d) && from == sc.to {
			continue
		}
		updated, err := s.client.AppsV1().ReplicaSets(changed.Namespace).Update(ctx, changed, metav1.UpdateOptions{})
		if err != nil {
			return scaled, err
		}
		s.replace(sc.set, updated)
		if from == sc.to {
			continue
		}
		scaled = true
		direction := "up"
		if sc.to < from {
			direction = "down"
		}
		s.events.Eventf(s.d, corev1.EventTypeNormal, "ScalingReplicaSet",
			"Scaled %s replica set %s from %d to %d", direction, updated.Name, from, sc.to)
	}
	return scaled, nil
}

func (s *step) replace(old, updated *appsv1.ReplicaSet) {
	if s.sets.current == old {
		s.sets.current = updated
	}
	for i := range s.sets.old {
		if s.sets.old[i] == old {
			s.sets.old[i] = updated
		}
	}
}

func (s *step) cleanup(ctx context.Context) error {
	for _, rs := range expired(s.d, s.sets.old) {
		err := s.client.AppsV1().ReplicaSets(rs.Namespace).Delete(ctx, rs.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (s *step) writeStatus(ctx context.Context) error {
	if equality.Semantic.DeepEqual(s.cached.Status, s.d.Status) &&
		s.cached.Annotations[revisionAnnotation] == s.d.Annotations[revisionAnnotation] {
		return nil
	}
	updated, err := s.client.AppsV1().Deployments(s.d.Namespace).UpdateStatus(ctx, s.d, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		s.writes.Wrote(controller.Key(s.d.Namespace, s.d.Name), updated.ResourceVersion)
	}
	return err
}
