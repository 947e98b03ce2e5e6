package controller

import (
	corev1 "k8s.io/api/core/v1"
)

// NodeCondition returns the condition of a type, nil when there is none.
func NodeCondition(node *corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == t {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// NodeReadyStatus is the status of the Ready condition, Unknown without one.
func NodeReadyStatus(node *corev1.Node) corev1.ConditionStatus {
	if c := NodeCondition(node, corev1.NodeReady); c != nil {
		return c.Status
	}
	return corev1.ConditionUnknown
}

// HeartbeatConditions are the conditions that an agent posts and that are
// unknown without it.
var HeartbeatConditions = []corev1.NodeConditionType{
	corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
}

// The words on the conditions of a node that is not heard of.
const (
	ReasonNodeUnknown  = "NodeStatusUnknown"
	MessageNodeUnknown = "Kubelet stopped posting node status."
)
