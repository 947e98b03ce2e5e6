package disruption

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// Scaler reads the scale of an owner of any other kind; it returns a NotFound
// error for one that is gone.
type Scaler interface {
	Scale(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (uid types.UID,
		replicas int32, err error)
}

type reconciler struct {
	client      kubernetes.Interface
	events      record.EventRecorder
	budgets     policylisters.PodDisruptionBudgetLister
	pods        corelisters.PodLister
	sets        appslisters.ReplicaSetLister
	deployments appslisters.DeploymentLister
	scaler      Scaler
	loop        *controller.Loop
}

// New builds the controller. scaler may be nil: then the pods of owners that
// are neither Deployments nor ReplicaSets cannot be counted.
func New(env controller.Env, scaler Scaler) (*controller.Loop, error) {
	core, apps, budgets := env.Informers.Core().V1(), env.Informers.Apps().V1(), env.Informers.Policy().
		V1().PodDisruptionBudgets()
	r := &reconciler{
		client: env.Client, events: env.Recorder("controllermanager"), scaler: scaler,
		budgets: budgets.Lister(), pods: core.Pods().Lister(), sets: apps.ReplicaSets().Lister(),
		deployments: apps.Deployments().Lister(),
		loop:        controller.New("disruption", 2, env.Log),
	}
	r.loop.Reconciler = r
	r.loop.WatchKeys(budgets.Informer())
	controller.Watch(r.loop, core.Pods().Informer(), r.podChanged)
	controller.Watch(r.loop, apps.Deployments().Informer(), func(old, d *appsv1.Deployment) {
		if old != nil && d != nil && !equality.Semantic.DeepEqual(old.Spec.Replicas, d.Spec.Replicas) {
			r.wakeNamespace(d.Namespace)
		}
	})
	controller.Watch(r.loop, apps.ReplicaSets().Informer(), func(old, rs *appsv1.ReplicaSet) {
		if old != nil && rs != nil && metav1.GetControllerOfNoCopy(rs) == nil &&
			!equality.Semantic.DeepEqual(old.Spec.Replicas, rs.Spec.Replicas) {
			r.wakeNamespace(rs.Namespace)
		}
	})
	return r.loop, nil
}

// podChanged has the budgets looked at that a pod counts in, and tells when these are several.
func (r *reconciler) podChanged(old, pod *corev1.Pod) {
	r.wake(old)
	of := r.wake(pod)
	if of > 1 && (old == nil || !equality.Semantic.DeepEqual(old.Labels, pod.Labels)) {
		r.events.Eventf(pod, corev1.EventTypeWarning, "MultiplePodDisruptionBudgets",
			"Pod %q/%q matches multiple PodDisruptionBudgets.  It cannot be evicted while it does.",
			pod.Namespace, pod.Name)
	}
}

// wake returns how many budgets a pod counts in.
func (r *reconciler) wake(pod *corev1.Pod) (of int) {
	if pod == nil {
		return 0
	}
	budgets, _ := r.budgets.PodDisruptionBudgets(pod.Namespace).List(labels.Everything())
	for _, b := range budgets {
		if s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && s.Matches(labels.Set(pod.Labels)) {
			r.loop.Add(controller.Key(b.Namespace, b.Name))
			of++
		}
	}
	return of
}

func (r *reconciler) wakeNamespace(namespace string) {
	budgets, _ := r.budgets.PodDisruptionBudgets(namespace).List(labels.Everything())
	for _, b := range budgets {
		r.loop.Add(controller.Key(b.Namespace, b.Name))
	}
}

// Reconcile brings one budget's status up to date; when that fails, the budget
// allows nothing and says why.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	pdb, err := r.budgets.PodDisruptionBudgets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	next, after, err := r.count(ctx, pdb)
	if err != nil {
		next = pdb.DeepCopy()
		next.Status.DisruptionsAllowed = 0
		meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
			Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
			Message: err.Error(), ObservedGeneration: next.Status.ObservedGeneration,
		})
	}
	if equality.Semantic.DeepEqual(pdb.Status, next.Status) {
		return after, nil
	}
	_, err = r.client.PolicyV1().PodDisruptionBudgets(namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	return after, err
}

func (r *reconciler) count(ctx context.Context, pdb *policyv1.PodDisruptionBudget) (*policyv1.PodDisruptionBudget,
	time.Duration, error) {
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	if err != nil {
		return nil, 0, err
	}
	pods, err := r.pods.Pods(pdb.Namespace).List(selector)
	if err != nil {
		return nil, 0, err
	}
	if len(pods) == 0 {
		r.events.Event(pdb, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	var scale int32
	if scaled(pdb) {
		if scale, err = r.scale(ctx, pdb, pods); err != nil {
			r.events.Eventf(pdb, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed",
				"Failed to calculate the number of expected pods: %v", err)
			return nil, 0, err
		}
	}
	c := counted{}
	if c.expected, c.desired, err = expected(pdb, len(pods), scale); err != nil {
		return nil, 0, err
	}
	disruptedPods, overdue, after := disrupted(pdb, pods, time.Now())
	for _, p := range overdue {
		r.events.Eventf(p, corev1.EventTypeWarning, "NotDeleted",
			"Pod was expected by PDB %s/%s to be deleted but it wasn't", pdb.Namespace, pdb.Name)
	}
	c.disrupted, c.current = disruptedPods, healthy(pods, disruptedPods)
	return status(pdb, c), after, nil
}

// scale adds up the scales of all owners of the pods.
func (r *reconciler) scale(ctx context.Context, pdb *policyv1.PodDisruptionBudget, pods []*corev1.Pod) (int32, error) {
	owners, unmanaged := map[types.UID]int32{}, false
	seen := map[types.UID]bool{}
	for _, p := range pods {
		ref := metav1.GetControllerOfNoCopy(p)
		if ref == nil {
			unmanaged = true
			continue
		}
		if seen[ref.UID] {
			continue
		}
		uid, n, err := r.ownerScale(ctx, ref, p)
		if err != nil {
			return 0, err
		}
		seen[ref.UID], owners[uid] = true, n
	}
	if unmanaged {
		r.events.Eventf(pdb, corev1.EventTypeWarning, "UnmanagedPods",
			"Pods selected by this PodDisruptionBudget (selector: %v) were found "+
				"to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. "+
				"To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.",
			pdb.Spec.Selector)
	}
	var sum int32
	for _, n := range owners {
		sum += n
	}
	return sum, nil
}

func (r *reconciler) ownerScale(ctx context.Context, ref *metav1.OwnerReference,
	pod *corev1.Pod) (types.UID, int32, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return "", 0, err
	}
	if gv.Group == appsv1.GroupName && ref.Kind == "ReplicaSet" {
		return r.setScale(ref, pod)
	}
	if r.scaler == nil {
		return "", 0, fmt.Errorf("found no controllers for pod %q", pod.Name)
	}
	uid, n, err := r.scaler.Scale(ctx, gv.WithKind(ref.Kind), pod.Namespace, ref.Name)
	if err == nil && uid != ref.UID || apierrors.IsNotFound(err) {
		return "", 0, fmt.Errorf("found no controllers for pod %q", pod.Name)
	}
	return uid, n, err
}

// setScale is the scale of the Deployment that owns the pod's ReplicaSet, else
// that of the ReplicaSet.
func (r *reconciler) setScale(ref *metav1.OwnerReference, pod *corev1.Pod) (types.UID, int32, error) {
	rs, err := r.sets.ReplicaSets(pod.Namespace).Get(ref.Name)
	if apierrors.IsNotFound(err) || err == nil && rs.UID != ref.UID {
		return "", 0, fmt.Errorf("found no controllers for pod %q", pod.Name)
	} else if err != nil {
		return "", 0, err
	}
	if owner := metav1.GetControllerOfNoCopy(rs); owner != nil && owner.Kind == "Deployment" {
		d, err := r.deployments.Deployments(pod.Namespace).Get(owner.Name)
		if err == nil && d.UID == owner.UID {
			return d.UID, replicas(d.Spec.Replicas), nil
		}
	}
	return rs.UID, replicas(rs.Spec.Replicas), nil
}

func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}
