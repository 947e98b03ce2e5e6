package problem

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// The conditions.
const (
	KernelDeadlock     corev1.NodeConditionType = "KernelDeadlock"
	ReadonlyFilesystem corev1.NodeConditionType = "ReadonlyFilesystem"
	ClockProblem       corev1.NodeConditionType = "ClockProblem"
)

// The reasons of conditions that hold. None is one of node-problem-detector's, so that
// a condition's writer is known by it.
const (
	reasonTaskHung     = "TaskHung"
	reasonLockup       = "CPULockup"
	reasonReadOnly     = "NodeFilesystemReadOnly"
	reasonClockDiffers = "ClockDiffers"
	reasonClockFree    = "ClockNotSynchronized"
)

// well is what conditions say that do not hold, and vocabulary all reasons of each.
var (
	well = map[corev1.NodeConditionType]corev1.NodeCondition{
		KernelDeadlock:     {Reason: "NoTaskHung", Message: "no task hangs in the kernel, and no processor is stuck"},
		ReadonlyFilesystem: {Reason: "NodeFilesystemWritable", Message: "the node can write where it must"},
		ClockProblem:       {Reason: "ClockRight", Message: "the clock is the coordinator's"},
	}
	vocabulary = map[corev1.NodeConditionType][]string{
		KernelDeadlock:     {reasonTaskHung, reasonLockup},
		ReadonlyFilesystem: {reasonReadOnly},
		ClockProblem:       {reasonClockDiffers, reasonClockFree},
	}
)

// Mine tells whether a condition is one of this package's, by its type and its reason.
func Mine(c corev1.NodeCondition) bool {
	return slices.Contains(vocabulary[c.Type], c.Reason) || c.Reason != "" && well[c.Type].Reason == c.Reason
}

// condition is one that holds if there is a reason.
func condition(t corev1.NodeConditionType, reason, message string) corev1.NodeCondition {
	if reason == "" {
		c := well[t]
		c.Type, c.Status = t, corev1.ConditionFalse
		return c
	}
	return corev1.NodeCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message}
}
