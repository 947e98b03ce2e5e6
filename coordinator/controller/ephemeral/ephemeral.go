package ephemeral

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/shoal-project/shoal/coordinator/controller"
)

type reconciler struct {
	client kubernetes.Interface
	pods   corelisters.PodLister
	claims corelisters.PersistentVolumeClaimLister
	events record.EventRecorder
}

// New builds the controller.
func New(env controller.Env) (*controller.Loop, error) {
	loop := controller.New("ephemeral-volume", 2, env.Log)
	core := env.Informers.Core().V1()
	loop.Reconciler = &reconciler{client: env.Client, pods: core.Pods().Lister(),
		claims: core.PersistentVolumeClaims().Lister(),
		events: env.Recorder("ephemeral_volume")}
	controller.Watch(loop, core.Pods().Informer(), func(old, pod *corev1.Pod) {
		// A pod's volumes do not change.
		if pod != nil && (old == nil || old.UID != pod.UID) && hasOwn(pod) {
			loop.Add(controller.Key(pod.Namespace, pod.Name))
		}
	})
	controller.Watch(loop, core.PersistentVolumeClaims().Informer(), func(old, claim *corev1.PersistentVolumeClaim) {
		if claim != nil {
			return
		}
		if owner := metav1.GetControllerOf(old); owner != nil && owner.Kind == "Pod" {
			loop.Add(controller.Key(old.Namespace, owner.Name))
		}
	})
	return loop, nil
}

func hasOwn(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Ephemeral != nil {
			return true
		}
	}
	return false
}

// Reconcile makes the claims of one pod.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	pod, err := r.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
			if err := r.ensure(ctx, claimFor(pod, v), pod); err != nil {
				r.events.Eventf(pod, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume %s: %v", v.Name, err)
				return 0, err
			}
		}
	}
	return 0, nil
}

// claimFor is the claim of a pod's ephemeral volume.
func claimFor(pod *corev1.Pod, v *corev1.Volume) *corev1.PersistentVolumeClaim {
	t := v.Ephemeral.VolumeClaimTemplate
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: ephemeral.VolumeClaimName(pod, v), Labels: t.Labels,
			Annotations:     t.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: t.Spec,
	}
}

// ensure creates the claim. One of this name that is not the pod's is left
// alone, and the pod waits (EPH-17).
func (r *reconciler) ensure(ctx context.Context, claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) error {
	have, err := r.claims.PersistentVolumeClaims(claim.Namespace).Get(claim.Name)
	if apierrors.IsNotFound(err) {
		_, err = r.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create PVC %s: %w", claim.Name, err)
		}
		return nil
	} else if err != nil {
		return err
	}
	return ephemeral.VolumeIsForPod(pod, have)
}
