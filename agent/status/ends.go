package status

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/metrics"
)

// countEnds counts the containers whose ends a pod's status tells of and the one
// before it did not.
func countEnds(ends *metrics.Counts, old, now *corev1.PodStatus) {
	for _, list := range []struct {
		kind     string
		old, now []corev1.ContainerStatus
	}{
		{"container", old.ContainerStatuses, now.ContainerStatuses},
		{"init_container", old.InitContainerStatuses, now.InitContainerStatuses},
		{"ephemeral_container", old.EphemeralContainerStatuses, now.EphemeralContainerStatuses},
	} {
		known := map[string]bool{}
		for i := range list.old {
			for _, t := range endsOf(&list.old[i]) {
				known[t.ContainerID] = true
			}
		}
		for i := range list.now {
			for _, t := range endsOf(&list.now[i]) {
				if t.ContainerID != "" && !known[t.ContainerID] {
					ends.Inc(list.kind, strconv.Itoa(int(t.ExitCode)), t.Reason)
				}
			}
		}
	}
}

// endsOf are the ends of a container and of the one before it. They may be the
// same.
func endsOf(s *corev1.ContainerStatus) (ends []*corev1.ContainerStateTerminated) {
	for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
		if t != nil && (len(ends) == 0 || ends[0].ContainerID != t.ContainerID) {
			ends = append(ends, t)
		}
	}
	return ends
}
