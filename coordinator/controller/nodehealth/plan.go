package nodehealth

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// Upstream v1.36's defaults.
const (
	grace         = 50 * time.Second // node-monitor-grace-period
	startupGrace  = 60 * time.Second // node-startup-grace-period
	evictionRate  = 0.1              // nodes a second, NODE-41
	secondaryRate = 0.01             // NODE-44
	unhealthyPart = 0.55             // NODE-42
	largeCluster  = 50               // NODE-43
)

// heard is what is known of one node's life.
type heard struct {
	// gossip: the node's agent answers probes now.
	gossip bool
	// last is when its Lease or status was last seen to change.
	last time.Time
}

// silent tells whether a node is not heard of any more, and if not yet, when it
// would be.
func silent(node *corev1.Node, h heard, now time.Time) (is bool, in time.Duration) {
	if h.gossip && controller.NodeCondition(node, corev1.NodeReady) != nil {
		return false, grace
	}
	limit := grace
	if controller.NodeCondition(node, corev1.NodeReady) == nil {
		limit = startupGrace
	}
	in = h.last.Add(limit).Sub(now)
	return in <= 0, max(in, 0)
}

// unknown sets the heartbeat conditions to Unknown and tells whether that
// changed any.
func unknown(node *corev1.Node, now time.Time) ([]corev1.NodeCondition, bool) {
	out, changed := slices.Clone(node.Status.Conditions), false
	for _, t := range controller.HeartbeatConditions {
		i := slices.IndexFunc(out, func(c corev1.NodeCondition) bool { return c.Type == t })
		if i < 0 {
			out = append(out, corev1.NodeCondition{
				Type: t, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
				LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: metav1.NewTime(now),
			})
			changed = true
		} else if out[i].Status != corev1.ConditionUnknown {
			out[i].Status, out[i].Reason, out[i].Message = corev1.ConditionUnknown, controller.ReasonNodeUnknown, controller.MessageNodeUnknown
			out[i].LastTransitionTime = metav1.NewTime(now)
			changed = true
		}
	}
	return out, changed
}

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
	want[corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}] = node.Spec.Unschedulable
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
		return t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
	})
}

// rate is how many nodes a second of a zone may get a NoExecute taint.
func rate(ready, notReady int) float64 {
	switch {
	case ready == 0: // NODE-45
		return evictionRate
	case notReady > 2 && float64(notReady)/float64(ready+notReady) >= unhealthyPart:
		if ready+notReady > largeCluster {
			return secondaryRate
		}
		return 0
	}
	return evictionRate
}

// excluded nodes do not count for the state of their zone.
func excluded(node *corev1.Node) bool {
	_, ok := node.Labels["node.kubernetes.io/exclude-disruption"]
	return ok
}
