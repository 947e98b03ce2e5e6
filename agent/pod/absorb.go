package pod

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// Absorb brings a record up to date with what the runtime shows: containers
// that are new to it, containers that ended, containers that are gone. It
// changes only the record.
func Absorb(p *corev1.Pod, r *record.Pod, o *record.Observed, busy map[string]bool) {
	record.EachContainer(p, func(c *corev1.Container) {
		if busy[c.Name] {
			return
		}
		absorb(p, c, r, o.Latest(c.Name))
	})
	if sb := o.Sandbox(); sb != nil {
		r.SandboxAttempts = max(r.SandboxAttempts, sb.Attempt+1)
		if sb.Ready && len(sb.IPs) > 0 {
			r.IPs = sb.IPs
		}
	}
}

func absorb(p *corev1.Pod, c *corev1.Container, r *record.Pod, o *record.Observation) {
	cr := r.Containers[c.Name]
	switch {
	case o == nil && cr == nil:
	case o == nil:
		lost(cr)
	case o.State == record.Running:
		cr = r.Of(c.Name)
		if cr.ID != o.ID {
			adopt(c, cr, o)
		}
		deriveReadiness(c, cr)
		if cr.Actuated == nil {
			give(cr, p, c)
		}
	case o.State == record.Exited:
		cr = r.Of(c.Name)
		if cr.Seen == nil || cr.Seen.ID != o.ID {
			cr.Seen = &record.Exit{ID: o.ID, Attempt: o.Attempt, State: o.Terminated()}
		}
		cr.ID, cr.Started, cr.Ready, cr.Unhealthy, cr.ProbeGrace = o.ID, false, false, "", nil
	}
}

// adopt begins the record of a container that runs and was not known.
func adopt(c *corev1.Container, cr *record.Container, o *record.Observation) {
	cr.ID, cr.Started, cr.Ready, cr.Unhealthy, cr.ProbeGrace, cr.Fault = o.ID, false, false, "", nil, nil
	cr.Actuated, cr.Limits, cr.Again, cr.Failed = nil, nil, false, false
	cr.Hooked = c.Lifecycle == nil || c.Lifecycle.PostStart == nil
}

// deriveReadiness derives Started and Ready where no probe has a say.
func deriveReadiness(c *corev1.Container, cr *record.Container) {
	cr.Fault = nil
	if c.StartupProbe == nil && cr.Hooked {
		cr.Started = true
	}
	if c.ReadinessProbe == nil {
		cr.Ready = cr.Started
	}
	if !cr.Started {
		cr.Ready = false
	}
}

// lost records the end of a container that the runtime no longer knows.
func lost(cr *record.Container) {
	if cr.ID == "" || (cr.Seen != nil && cr.Seen.ID == cr.ID) {
		return
	}
	e := &record.Exit{ID: cr.ID, State: unknownEnd(cr.ID)}
	if cr.Seen != nil {
		e.Attempt = cr.Seen.Attempt + 1
	}
	cr.Seen, cr.Started, cr.Ready, cr.Unhealthy = e, false, false, ""
}

// unknownEnd is how a container ended that nobody saw end.
func unknownEnd(id string) corev1.ContainerStateTerminated {
	return corev1.ContainerStateTerminated{
		ExitCode: 137, Reason: "ContainerStatusUnknown", ContainerID: id,
		Message: "The container could not be located when the pod was terminated",
	}
}
