package replicaset

import (
	"math"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// burst bounds how many pods one reconcile creates or deletes.
const burst = 500

// plan tells how many pods to create and which to delete. related are the
// active pods of all ReplicaSets of the same owner: pods that share a node with
// many of them go first.
func plan(rs *appsv1.ReplicaSet, active, related []*corev1.Pod, now time.Time) (create int, del []*corev1.Pod) {
	diff := len(active) - int(replicas(rs))
	switch {
	case diff < 0:
		return min(-diff, burst), nil
	case diff == 0:
		return 0, nil
	case diff == len(active):
		return 0, active[:min(diff, burst)]
	}
	return 0, rank(active, related, now)[:min(diff, burst)]
}

func replicas(rs *appsv1.ReplicaSet) int32 {
	if rs.Spec.Replicas == nil {
		return 1
	}
	return *rs.Spec.Replicas
}

// rank sorts pods by how well they can be missed, the best first: unassigned,
// pending, not ready, lower deletion cost (KEP-2255), many of its kind on the
// node, ready for a shorter time, more restarts, younger. Times are compared by
// magnitude (KEP-2185), so that the youngest is not always the victim.
func rank(pods, related []*corev1.Pod, now time.Time) []*corev1.Pod {
	onNode := make(map[string]int, len(related))
	for _, p := range related {
		if p.Spec.NodeName != "" {
			onNode[p.Spec.NodeName]++
		}
	}
	ranked := slices.Clone(pods)
	slices.SortStableFunc(ranked, func(a, b *corev1.Pod) int {
		return compare(a, b, onNode, now)
	})
	return ranked
}

func compare(a, b *corev1.Pod, onNode map[string]int, now time.Time) int {
	if c := first(b.Spec.NodeName == "", a.Spec.NodeName == ""); c != 0 {
		return c
	}
	if c := phaseOrder[a.Status.Phase] - phaseOrder[b.Status.Phase]; c != 0 {
		return c
	}
	readyA, readyB := controller.PodReady(a), controller.PodReady(b)
	if c := first(readyA, readyB); c != 0 {
		return c
	}
	if c := deletionCost(a) - deletionCost(b); c != 0 {
		return sign(c)
	}
	if c := onNode[b.Spec.NodeName] - onNode[a.Spec.NodeName]; c != 0 && a.Spec.NodeName != "" {
		return c
	}
	if readyA && readyB {
		if c := younger(controller.ReadySince(a), controller.ReadySince(b), now); c != 0 {
			return c
		}
	}
	if c := controller.MoreRestarts(a, b); c != 0 {
		return c
	}
	if c := younger(a.CreationTimestamp, b.CreationTimestamp, now); c != 0 {
		return c
	}
	if a.UID < b.UID {
		return -1
	}
	return 1
}

var phaseOrder = map[corev1.PodPhase]int{corev1.PodPending: 0, corev1.PodUnknown: 1, corev1.PodRunning: 2}

// first orders the one that is false before the one that is true.
func first(a, b bool) int {
	switch {
	case !a && b:
		return -1
	case a && !b:
		return 1
	}
	return 0
}

func sign(n int64) int {
	if n < 0 {
		return -1
	}
	return 1
}

// deletionCost is the pod's controller.kubernetes.io/pod-deletion-cost, 0 when
// absent or invalid.
func deletionCost(p *corev1.Pod) int64 {
	n, err := strconv.ParseInt(p.Annotations[corev1.PodDeletionCost], 10, 32)
	if err != nil {
		return 0
	}
	return n
}

// younger orders a time whose age is of a lower power of two first, an unset
// time before all.
func younger(a, b metav1.Time, now time.Time) int {
	if a.IsZero() || b.IsZero() {
		return first(!a.IsZero(), !b.IsZero())
	}
	return magnitude(now.Sub(a.Time)) - magnitude(now.Sub(b.Time))
}

func magnitude(age time.Duration) int {
	if age < 1 {
		return -1
	}
	return int(math.Log2(float64(age)))
}

// counted is what a status is made from.
type counted struct {
	active      []*corev1.Pod
	terminating int
	// failure is the last error of creating or deleting.
	failure error
}

// statusOf counts the pods. wait is the time until the next ready pod becomes
// available, 0 when none will.
func statusOf(rs *appsv1.ReplicaSet, c counted, now time.Time) (status appsv1.ReplicaSetStatus, wait time.Duration) {
	status = appsv1.ReplicaSetStatus{ObservedGeneration: rs.Generation, Conditions: conditions(rs, c, now)}
	status.Replicas = int32(len(c.active))
	terminating := int32(c.terminating)
	status.TerminatingReplicas = &terminating
	template := labels.SelectorFromSet(rs.Spec.Template.Labels)
	for _, p := range c.active {
		if template.Matches(labels.Set(p.Labels)) {
			status.FullyLabeledReplicas++
		}
		if !controller.PodReady(p) {
			continue
		}
		status.ReadyReplicas++
		available, left := controller.PodAvailable(p, rs.Spec.MinReadySeconds, now)
		if available {
			status.AvailableReplicas++
		} else if left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return status, wait
}

func conditions(rs *appsv1.ReplicaSet, c counted, now time.Time) []appsv1.ReplicaSetCondition {
	i := slices.IndexFunc(rs.Status.Conditions, func(c appsv1.ReplicaSetCondition) bool {
		return c.Type == appsv1.ReplicaSetReplicaFailure
	})
	switch {
	case c.failure == nil && i >= 0:
		return slices.Delete(slices.Clone(rs.Status.Conditions), i, i+1)
	case c.failure == nil || i >= 0:
		return rs.Status.Conditions
	}
	reason := "FailedCreate"
	if len(c.active) > int(replicas(rs)) {
		reason = "FailedDelete"
	}
	return append(slices.Clone(rs.Status.Conditions), appsv1.ReplicaSetCondition{
		Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(now), Reason: reason, Message: c.failure.Error(),
	})
}
