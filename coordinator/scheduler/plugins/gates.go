package plugins

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// schedulingGates keeps pods with spec.schedulingGates out of the queue.
type schedulingGates struct{}

func (schedulingGates) Name() string { return SchedulingGatesName }

func (schedulingGates) PreEnqueue(pod *corev1.Pod) *framework.Status {
	if len(pod.Spec.SchedulingGates) == 0 {
		return nil
	}
	names := make([]string, 0, len(pod.Spec.SchedulingGates))
	for _, g := range pod.Spec.SchedulingGates {
		names = append(names, g.Name)
	}
	return framework.NewStatus(framework.UnschedulableAndUnresolvable,
		fmt.Sprintf("waiting for scheduling gates: %v", names))
}

func (schedulingGates) Events() []framework.EventHint {
	return []framework.EventHint{{
		Resource: framework.Pod, Actions: framework.UpdatePodSchedulingGatesEliminated,
		Hint: func(pod *corev1.Pod, e framework.Event) framework.Hint { return framework.Hint(samePod(pod, e)) },
	}}
}
