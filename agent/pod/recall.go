package pod

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// Recall fills the record of a pod that the node has no record of from what the
// API tells of it: when it was taken, how often its containers ran and how they
// ended. So a node that was purged, or lost its disk, runs nothing a second time
// that has ended, and counts on. It is pure, and changes only the record.
//
// A container that the API shows running and the runtime does not have is lost:
// as after a reboot, its restart policy says whether it runs again.
func Recall(p *corev1.Pod, r *record.Pod, o *record.Observed) {
	s := &p.Status
	if r.Admitted.IsZero() && s.StartTime != nil {
		r.Admitted = *s.StartTime
	}
	if len(r.IPs) == 0 && !p.Spec.HostNetwork {
		for _, ip := range s.PodIPs {
			r.IPs = append(r.IPs, ip.IP)
		}
	}
	for _, list := range [][]corev1.ContainerStatus{
		s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses,
	} {
		for i := range list {
			if r.Containers[list[i].Name] != nil || record.FindContainer(p, list[i].Name) == nil {
				continue
			}
			if e := lastRun(&list[i], o.Latest(list[i].Name)); e != nil {
				r.Of(list[i].Name).Seen = e
			}
			recallRestart(&list[i], r)
		}
	}
}

// recallRestart lets a container run again that was removed with all others of its
// pod to do so.
func recallRestart(s *corev1.ContainerStatus, r *record.Pod) {
	cr := r.Containers[s.Name]
	if cr == nil || cr.Seen == nil || s.State.Waiting == nil || s.State.Waiting.Reason != reasonRestartingAll {
		return
	}
	cr.Again = true
	cr.Seen.Attempt = uint32(max(0, s.RestartCount-1)) // the API counts the next run already
}

// lastRun is the newest run of a container that the API tells of and that the
// runtime does not have any more, nil for none.
func lastRun(s *corev1.ContainerStatus, have *record.Observation) *record.Exit {
	id, last := bareID(s.ContainerID), s.LastTerminationState.Terminated
	there := have != nil && have.ID == id && id != ""
	switch {
	case there && last != nil:
		return &record.Exit{ID: bareID(last.ContainerID), Attempt: uint32(max(0, s.RestartCount-1)), State: *last}
	case there:
		return nil
	case s.State.Terminated != nil:
		return &record.Exit{ID: id, Attempt: uint32(max(0, s.RestartCount)), State: *s.State.Terminated}
	case s.State.Running != nil:
		return &record.Exit{ID: id, Attempt: uint32(max(0, s.RestartCount)), State: unknownEnd(id)}
	case last != nil: // it waits to run again
		return &record.Exit{ID: bareID(last.ContainerID), Attempt: uint32(max(0, s.RestartCount)), State: *last}
	}
	return nil
}

// bareID is a container's ID without the runtime's name before it.
func bareID(id string) string {
	if _, after, ok := strings.Cut(id, "://"); ok {
		return after
	}
	return id
}

// overInAPI is the verdict on a pod that the API tells is over, nil while it is
// not: it ends here too, whoever said so, and never runs again.
func overInAPI(p *corev1.Pod) *record.Verdict {
	if !terminal(p) {
		return nil
	}
	return &record.Verdict{Phase: p.Status.Phase, Reason: p.Status.Reason, Message: p.Status.Message}
}
