package podgc

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// quarantine is how long a node must be gone before its pods go.
const quarantine = 40 * time.Second

type doomed struct {
	pod *corev1.Pod
	// condition tells the pod why, nil for none.
	condition *corev1.PodCondition
}

// plan says what is to be done about one pod now; after is when to look again
// (0: never). missing is since when the pod's node is gone, zero when it is
// there.
func plan(pod *corev1.Pod, node *corev1.Node, missing, now time.Time) (kill *doomed, after time.Duration) {
	switch {
	case pod.Spec.NodeName == "":
		if pod.DeletionTimestamp != nil {
			return &doomed{pod: pod}, 0
		}
	case node == nil && !missing.IsZero():
		if left := missing.Add(quarantine).Sub(now); left > 0 {
			return nil, left
		}
		return &doomed{pod, &corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists",
		}}, 0
	case node != nil && pod.DeletionTimestamp != nil && outOfService(node):
		return &doomed{pod: pod}, 0
	}
	return nil, 0
}

// outOfService tells whether an operator has said that a not ready node is off
// (KEP-2268, NODE-58).
func outOfService(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return false
		}
	}
	return slices.ContainsFunc(node.Spec.Taints,
		func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// surplus are the finished pods beyond limit, evicted ones and the oldest first; a limit of
// 0 or less is none.
func surplus(pods []*corev1.Pod, limit int) []*corev1.Pod {
	finished := slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !controller.PodTerminal(p) })
	over := len(finished) - limit
	if over <= 0 || limit <= 0 {
		return nil
	}
	slices.SortFunc(finished, func(a, b *corev1.Pod) int {
		if ea, eb := evicted(a), evicted(b); ea != eb {
			if ea {
				return -1
			}
			return 1
		}
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return finished[:over]
}

func evicted(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted"
}
