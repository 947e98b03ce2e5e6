package taint

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// plan tells whether and when a pod must leave a node with these taints. since
// is when a taint without timeAdded was first seen.
func plan(tolerations []corev1.Toleration, taints []corev1.Taint, since time.Time) (at time.Time, evict bool) {
	for i := range taints {
		t := &taints[i]
		if t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		seconds, ok := tolerated(tolerations, t)
		if ok && seconds == nil {
			continue
		}
		due := since
		if t.TimeAdded != nil {
			due = t.TimeAdded.Time
		}
		if ok {
			due = due.Add(time.Duration(max(*seconds, 0)) * time.Second)
		}
		if !evict || due.Before(at) {
			at, evict = due, true
		}
	}
	return at, evict
}

// tolerated finds the first toleration of a taint; nil seconds are for ever.
func tolerated(tolerations []corev1.Toleration, t *corev1.Taint) (seconds *int64, ok bool) {
	for i := range tolerations {
		if tolerations[i].ToleratesTaint(klog.Background(), t, true) {
			return tolerations[i].TolerationSeconds, true
		}
	}
	return nil, false
}

func hasNoExecute(node *corev1.Node) bool {
	for i := range node.Spec.Taints {
		if node.Spec.Taints[i].Effect == corev1.TaintEffectNoExecute {
			return true
		}
	}
	return false
}
