package nodehealth

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// heartbeatConditions are the conditions that an agent posts and that are
// unknown without it.
var heartbeatConditions = []corev1.NodeConditionType{
	corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
}

// The words on the conditions of a node that is not heard of.
const (
	reasonUnknown  = "NodeStatusUnknown"
	messageUnknown = "Kubelet stopped posting node status."
	reasonNever    = "NodeStatusNeverUpdated"
	messageNever   = "Kubelet never posted node status."
)

// unknown returns the conditions with the agent's own turned Unknown.
func unknown(have []corev1.NodeCondition, now time.Time) []corev1.NodeCondition {
	out := slices.Clone(have)
	for i := range out {
		if slices.Contains(heartbeatConditions, out[i].Type) && out[i].Status != corev1.ConditionUnknown {
			out[i].Status, out[i].Reason, out[i].Message = corev1.ConditionUnknown, reasonUnknown, messageUnknown
			out[i].LastTransitionTime = metav1.NewTime(now)
		}
	}
	return out
}

// allUnknown is unknown, with those conditions added that the agent never
// posted; nil when the node has them all already.
func allUnknown(node *corev1.Node, now time.Time) []corev1.NodeCondition {
	out := unknown(node.Status.Conditions, now)
	for _, t := range heartbeatConditions {
		if slices.ContainsFunc(out, func(c corev1.NodeCondition) bool { return c.Type == t }) {
			continue
		}
		out = append(out, corev1.NodeCondition{
			Type: t, Status: corev1.ConditionUnknown, Reason: reasonNever, Message: messageNever,
			LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: metav1.NewTime(now),
		})
	}
	if slices.Equal(out, node.Status.Conditions) {
		return nil
	}
	return out
}

// restored returns the conditions with those that are Unknown by us as they
// were before.
func restored(have, before []corev1.NodeCondition, now time.Time) []corev1.NodeCondition {
	out := slices.Clone(have)
	for i := range out {
		if out[i].Reason != reasonUnknown || out[i].Status != corev1.ConditionUnknown {
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
