package member

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/controller"
)

// slack is how much later than its death a node's last Lease renewal may be
// seen here.
const slack = 1500 * time.Millisecond

type verdict int

const (
	nothing verdict = iota
	// lost: the node's conditions are to be Unknown.
	lost
	// back: its conditions are to be what they were before.
	back
)

// judge tells what a member's state means for its node. renewed is when its
// Lease was last seen to be renewed: a renewal after the death proves that only
// the gossip is cut off.
func judge(node *corev1.Node, m *gossip.Member, renewed time.Time) verdict {
	ready := controller.NodeCondition(node, corev1.NodeReady)
	switch {
	case m == nil || m.Role != gossip.RoleAgent || ready == nil:
		return nothing
	case m.State.Up() || renewed.After(m.Since.Add(slack)):
		if ready.Status == corev1.ConditionUnknown && ready.Reason == controller.ReasonNodeUnknown {
			return back
		}
		return nothing
	case ready.Status != corev1.ConditionUnknown:
		return lost
	}
	return nothing
}

// unknown returns the conditions with the agent's own turned Unknown.
func unknown(have []corev1.NodeCondition, now time.Time) []corev1.NodeCondition {
	out := slices.Clone(have)
	for i := range out {
		if slices.Contains(controller.HeartbeatConditions, out[i].Type) && out[i].Status != corev1.ConditionUnknown {
			out[i].Status, out[i].Reason, out[i].Message = corev1.ConditionUnknown, controller.ReasonNodeUnknown, controller.MessageNodeUnknown
			out[i].LastTransitionTime = metav1.NewTime(now)
		}
	}
	return out
}

// restored returns the conditions with those that are Unknown by us as they
// were before.
func restored(have, before []corev1.NodeCondition, now time.Time) []corev1.NodeCondition {
	out := slices.Clone(have)
	for i := range out {
		if out[i].Reason != controller.ReasonNodeUnknown || out[i].Status != corev1.ConditionUnknown {
			continue
		}
		for _, b := range before {
			if b.Type == out[i].Type {
				out[i].Status, out[i].Reason, out[i].Message = b.Status, b.Reason, b.Message
				out[i].LastTransitionTime = metav1.NewTime(now)
			}
		}
	}
	return out
}
