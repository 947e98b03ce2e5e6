package controller

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
)

// ByNode is the index of pods by spec.nodeName; unassigned pods are under "".
const ByNode = "node"

// IndexPodsByNode adds the ByNode index to the pod informer.
func IndexPodsByNode(informer cache.SharedIndexInformer) error {
	return Index(informer, ByNode, func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			return []string{pod.Spec.NodeName}, nil
		}
		return nil, nil
	})
}

// PodsOnNode returns the cached pods bound to node.
func PodsOnNode(indexer cache.Indexer, node string) []*corev1.Pod {
	objs, _ := indexer.ByIndex(ByNode, node)
	out := make([]*corev1.Pod, 0, len(objs))
	for _, o := range objs {
		if pod, ok := o.(*corev1.Pod); ok {
			out = append(out, pod)
		}
	}
	return out
}

// PodTerminal tells whether the pod's containers are over for good.
func PodTerminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// PodActive tells whether the pod counts as a replica: neither over nor being
// deleted.
func PodActive(pod *corev1.Pod) bool { return !PodTerminal(pod) && pod.DeletionTimestamp == nil }

// PodCondition returns the condition of a type, nil when there is none.
func PodCondition(status *corev1.PodStatus, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range status.Conditions {
		if status.Conditions[i].Type == t {
			return &status.Conditions[i]
		}
	}
	return nil
}

// ReadySince is when the pod became ready; zero for one that is not.
func ReadySince(pod *corev1.Pod) metav1.Time {
	if c := PodCondition(&pod.Status, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		return c.LastTransitionTime
	}
	return metav1.Time{}
}

// MoreRestarts orders the pod first that has a container which restarted more often; of two
// alike the one with such a sidecar.
func MoreRestarts(a, b *corev1.Pod) int {
	containersA, sidecarsA := restarts(a)
	containersB, sidecarsB := restarts(b)
	return cmp.Or(cmp.Compare(containersB, containersA), cmp.Compare(sidecarsB, sidecarsA))
}

func restarts(pod *corev1.Pod) (containers, sidecars int32) {
	for i := range pod.Status.ContainerStatuses {
		containers = max(containers, pod.Status.ContainerStatuses[i].RestartCount)
	}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		for i := range pod.Status.InitContainerStatuses {
			if s := &pod.Status.InitContainerStatuses[i]; s.Name == c.Name {
				sidecars = max(sidecars, s.RestartCount)
			}
		}
	}
	return containers, sidecars
}

// PodReady tells whether the pod's Ready condition is true.
func PodReady(pod *corev1.Pod) bool {
	c := PodCondition(&pod.Status, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// PodAvailable tells whether the pod has been ready for minReadySeconds; when
// it is ready but not yet available, wait is the time until it is.
func PodAvailable(pod *corev1.Pod, minReadySeconds int32, now time.Time) (available bool, wait time.Duration) {
	c := PodCondition(&pod.Status, corev1.PodReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		return false, 0
	}
	if minReadySeconds == 0 {
		return true, 0
	}
	if c.LastTransitionTime.IsZero() {
		return false, 0
	}
	wait = c.LastTransitionTime.Add(time.Duration(minReadySeconds) * time.Second).Sub(now)
	return wait <= 0, max(wait, 0)
}

// NewPod makes a pod of template for owner: a generated name, the template's
// labels, annotations and finalizers, and the controller reference.
func NewPod(template *corev1.PodTemplateSpec, owner metav1.Object, ref *metav1.OwnerReference) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:    owner.GetNamespace(),
			GenerateName: GenerateName(owner.GetName()),
			Labels:       maps.Clone(template.Labels),
			Annotations:  maps.Clone(template.Annotations),
			Finalizers:   slices.Clone(template.Finalizers),
		},
		Spec: *template.Spec.DeepCopy(),
	}
	if ref != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*ref}
	}
	return pod
}

// GenerateName is the name prefix of the pods of an owner: "name-", without
// the dash where that would be no valid name.
func GenerateName(owner string) string {
	if prefix := owner + "-"; len(validation.IsDNS1123Subdomain(strings.TrimSuffix(prefix, "-"))) == 0 &&
		len(prefix) < validation.DNS1123SubdomainMaxLength {
		return prefix
	}
	return owner
}

// SlowStart calls fn for 0..count-1 in batches of 1, 2, 4 and so on, each batch
// at once, and stops after a batch with an error, so that a quota that refuses
// one refuses few. It returns how many succeeded and the first error.
func SlowStart(ctx context.Context, count int, fn func(ctx context.Context, i int) error) (int, error) {
	done := 0
	for batch := 1; done < count; batch *= 2 {
		size := min(batch, count-done)
		ok, err := Each(ctx, done, done+size, fn)
		done += ok
		if err != nil {
			return done, err
		}
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
	}
	return done, nil
}

// Each calls fn for from..to-1 at once and returns how many succeeded and the
// first error.
func Each(ctx context.Context, from, to int, fn func(ctx context.Context, i int) error) (int, error) {
	if to-from == 1 {
		if err := fn(ctx, from); err != nil {
			return 0, err
		}
		return 1, nil
	}
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		ok    int
		first error
	)
	for i := from; i < to; i++ {
		wg.Go(func() {
			err := fn(ctx, i)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				ok++
			} else if first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	return ok, first
}
