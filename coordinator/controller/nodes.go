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
