package disruption

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// staleAfter is how long a pod may be marked for a disruption that does not come.
const staleAfter = 2 * time.Minute

// NewStale builds the controller that resets the condition DisruptionTarget of
// pods that were not disrupted after all (DIS-19); its keys are pods.
func NewStale(env controller.Env) (*controller.Loop, error) {
	pods := env.Informers.Core().V1().Pods()
	loop := controller.New("stale-pod-disruption", 1, env.Log)
	loop.Reconciler = controller.Func(func(ctx context.Context, key string) (time.Duration, error) {
		return reset(ctx, env.Client, pods.Lister(), key)
	})
	controller.Watch(loop, pods.Informer(), func(_, pod *corev1.Pod) {
		if pod == nil {
			return
		}
		if at, marked := staleAt(pod); marked {
			loop.AddAfter(controller.Key(pod.Namespace, pod.Name), time.Until(at))
		}
	})
	return loop, nil
}

// staleAt tells when a pod's mark is too old. A pod that is over or being deleted
// keeps it, and a kubelet's own may take any time.
func staleAt(pod *corev1.Pod) (at time.Time, marked bool) {
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return time.Time{}, false
	}
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget
	})
	if i < 0 {
		return time.Time{}, false
	}
	c := pod.Status.Conditions[i]
	if c.Status != corev1.ConditionTrue || c.Reason == corev1.PodReasonTerminationByKubelet {
		return time.Time{}, false
	}
	return c.LastTransitionTime.Add(staleAfter), true
}

// reset says that a pod is not to be disrupted, when its mark is too old. The
// write fails when the pod has changed since, and is tried again.
func reset(ctx context.Context, client kubernetes.Interface, pods corelisters.PodLister,
	key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	pod, err := pods.Pods(namespace).Get(name)
	if err != nil {
		return 0, controller.IgnoreGone(err)
	}
	at, marked := staleAt(pod)
	if !marked {
		return 0, nil
	}
	if left := time.Until(at); left > 0 {
		return left, nil
	}
	next := pod.DeepCopy()
	for i, c := range next.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			next.Status.Conditions[i] = corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse,
				ObservedGeneration: pod.Generation, LastTransitionTime: metav1.Now(),
			}
		}
	}
	_, err = client.CoreV1().Pods(namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return 0, controller.IgnoreGone(err)
}
