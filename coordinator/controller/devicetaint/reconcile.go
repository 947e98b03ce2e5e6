package devicetaint

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// byPool finds slices and allocated claims by the pools of their devices.
const byPool = "device-pool"

type reconciler struct {
	client   kubernetes.Interface
	events   record.EventRecorder
	pods     corelisters.PodLister
	claims   resourcelisters.ResourceClaimLister
	claimsIx cache.Indexer
	slicesIx cache.Indexer
	loop     *controller.Loop

	mu sync.Mutex
	// marked are pods that are to go later, for the event that tells that they stay.
	marked map[types.UID]bool
}

// New builds the controller; its keys are pods.
func New(env controller.Env) (*controller.Loop, error) {
	pods, dra := env.Informers.Core().V1().Pods(), env.Informers.Resource().V1()
	claims, slices := dra.ResourceClaims(), dra.ResourceSlices()
	if err := controller.Index(claims.Informer(), byPool, poolsOfClaim); err != nil {
		return nil, err
	}
	if err := controller.Index(slices.Informer(), byPool, poolOfSlice); err != nil {
		return nil, err
	}
	r := &reconciler{
		client: env.Client, events: env.Recorder("device-taint-eviction-controller"),
		pods: pods.Lister(), claims: claims.Lister(),
		claimsIx: claims.Informer().GetIndexer(), slicesIx: slices.Informer().GetIndexer(),
		loop: controller.New("device-taint-eviction", 2, env.Log), marked: map[types.UID]bool{},
	}
	r.loop.Reconciler = r
	controller.Watch(r.loop, pods.Informer(), r.podChanged)
	controller.Watch(r.loop, claims.Informer(), func(old, c *resourcev1.ResourceClaim) { r.wake(old); r.wake(c) })
	controller.Watch(r.loop, slices.Informer(), func(old, s *resourcev1.ResourceSlice) {
		if hasTaint(old) || hasTaint(s) {
			r.wakePool(old)
			r.wakePool(s)
		}
	})
	return r.loop, nil
}

func poolKey(driver, pool string) string { return driver + "/" + pool }

func poolsOfClaim(obj any) (keys []string, err error) {
	c, ok := obj.(*resourcev1.ResourceClaim)
	if !ok || c.Status.Allocation == nil {
		return nil, nil
	}
	for i := range c.Status.Allocation.Devices.Results {
		given := &c.Status.Allocation.Devices.Results[i]
		keys = append(keys, poolKey(given.Driver, given.Pool))
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

func poolOfSlice(obj any) ([]string, error) {
	if s, ok := obj.(*resourcev1.ResourceSlice); ok {
		return []string{poolKey(s.Spec.Driver, s.Spec.Pool.Name)}, nil
	}
	return nil, nil
}

func byIndex[T any](indexer cache.Indexer, key string) (out []*T) {
	objs, _ := indexer.ByIndex(byPool, key) // it fails only without the index
	for _, o := range objs {
		if t, ok := o.(*T); ok {
			out = append(out, t)
		}
	}
	return out
}

func hasTaint(s *resourcev1.ResourceSlice) bool {
	return s != nil && slices.ContainsFunc(s.Spec.Devices, func(d resourcev1.Device) bool {
		return slices.ContainsFunc(d.Taints,
			func(t resourcev1.DeviceTaint) bool { return t.Effect == resourcev1.DeviceTaintEffectNoExecute })
	})
}

func (r *reconciler) podChanged(old, pod *corev1.Pod) {
	if pod == nil {
		r.forget(old.UID)
		return
	}
	if len(pod.Spec.ResourceClaims) > 0 && (old == nil || old.Spec.NodeName != pod.Spec.NodeName ||
		!equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses)) {
		r.loop.Add(controller.Key(pod.Namespace, pod.Name))
	}
}

// wake has the pods looked at that use a claim.
func (r *reconciler) wake(c *resourcev1.ResourceClaim) {
	if c == nil {
		return
	}
	for _, ref := range c.Status.ReservedFor {
		if ref.APIGroup == "" && ref.Resource == "pods" {
			r.loop.Add(controller.Key(c.Namespace, ref.Name))
		}
	}
}

func (r *reconciler) wakePool(s *resourcev1.ResourceSlice) {
	if s == nil {
		return
	}
	for _, c := range byIndex[resourcev1.ResourceClaim](r.claimsIx, poolKey(s.Spec.Driver, s.Spec.Pool.Name)) {
		r.wake(c)
	}
}

// Reconcile evicts one pod when it is due.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	pod, err := r.pods.Pods(namespace).Get(name)
	if err != nil {
		return 0, controller.IgnoreGone(err)
	}
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" || controller.PodTerminal(pod) {
		r.forget(pod.UID)
		return 0, nil
	}
	at, evict := r.due(pod)
	if !evict {
		if r.forget(pod.UID) {
			r.events.Event(pod, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Cancelling deletion")
		}
		return 0, nil
	}
	if wait := time.Until(at); wait > 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.marked[pod.UID] = true
		return wait, nil
	}
	r.events.Event(pod, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Marking for deletion")
	return 0, r.evict(ctx, pod)
}

func (r *reconciler) forget(uid types.UID) (was bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was = r.marked[uid]
	delete(r.marked, uid)
	return was
}

// due is the earliest of the pod's claims.
func (r *reconciler) due(pod *corev1.Pod) (at time.Time, evict bool) {
	of := func(driver, pool string) []*resourcev1.ResourceSlice {
		return byIndex[resourcev1.ResourceSlice](r.slicesIx, poolKey(driver, pool))
	}
	for i := range pod.Spec.ResourceClaims {
		name, checkOwner, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue // there is none yet, or none is needed
		}
		claim, err := r.claims.ResourceClaims(pod.Namespace).Get(*name)
		if err != nil || checkOwner && resourceclaim.IsForPod(pod, claim, false) != nil ||
			!resourceclaim.IsReservedForPod(pod, claim, false) {
			continue
		}
		if end, ever := due(claim, of); ever && (!evict || end.Before(at)) {
			at, evict = end, true
		}
	}
	return at, evict
}

func (r *reconciler) evict(ctx context.Context, pod *corev1.Pod) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
			Reason:  "DeletionByDeviceTaintManager",
			Message: "Device Taint manager: deleting due to NoExecute taint",
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
