package nodehealth

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// conditionTaints says which taint each condition's status means.
var conditionTaints = []struct {
	condition corev1.NodeConditionType
	status    corev1.ConditionStatus
	key       string
}{
	{corev1.NodeReady, corev1.ConditionFalse, corev1.TaintNodeNotReady},
	{corev1.NodeReady, corev1.ConditionUnknown, corev1.TaintNodeUnreachable},
	{corev1.NodeMemoryPressure, corev1.ConditionTrue, corev1.TaintNodeMemoryPressure},
	{corev1.NodeDiskPressure, corev1.ConditionTrue, corev1.TaintNodeDiskPressure},
	{corev1.NodePIDPressure, corev1.ConditionTrue, corev1.TaintNodePIDPressure},
	{corev1.NodeNetworkUnavailable, corev1.ConditionTrue, corev1.TaintNodeNetworkUnavailable},
}

// execute is what is wanted of a node's NoExecute taints.
type execute int

const (
	// clear them: the node is well, or nothing may be evicted.
	clear execute = iota
	// leave them as they are, but follow a change between not-ready and
	// unreachable.
	follow
	// add the one that fits the Ready condition.
	add
)

// taints returns the taints that the node should have and whether they differ
// from what it has. Taints of others are kept.
func taints(node *corev1.Node, ex execute, now time.Time) ([]corev1.Taint, bool) {
	want := map[corev1.Taint]bool{}
	for _, ct := range conditionTaints {
		c := controller.NodeCondition(node, ct.condition)
		want[corev1.Taint{Key: ct.key, Effect: corev1.TaintEffectNoSchedule}] = c != nil && c.Status == ct.status
	}
	want[corev1.Taint{Key: corev1.TaintNodeUnschedulable,
		Effect: corev1.TaintEffectNoSchedule}] = node.Spec.Unschedulable
	wantExecute(want, node, ex)

	added := metav1.NewTime(now)
	var out []corev1.Taint
	changed := false
	for _, t := range node.Spec.Taints {
		id := corev1.Taint{Key: t.Key, Effect: t.Effect}
		if keep, ours := want[id]; ours && !keep {
			changed = true
			continue
		}
		delete(want, id)
		out = append(out, t)
	}
	for id, wanted := range want {
		if wanted {
			id.TimeAdded = &added
			out = append(out, id)
			changed = true
		}
	}
	return out, changed
}

func wantExecute(want map[corev1.Taint]bool, node *corev1.Node, ex execute) {
	notReady := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}
	unreachable := corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}
	want[notReady], want[unreachable] = false, false
	has := tainted(node)
	if ex == clear || ex == follow && !has {
		return
	}
	switch controller.NodeReadyStatus(node) {
	case corev1.ConditionFalse:
		want[notReady] = true
	case corev1.ConditionUnknown:
		want[unreachable] = true
	}
}

// tainted tells whether the node has one of our NoExecute taints.
func tainted(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute &&
			(t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
	})
}
