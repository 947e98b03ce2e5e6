package pod

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// This file restarts all containers of a pod in place (KEP-5532): one that ends by a
// rule of its own has all others ended at once, whatever they do. All are removed, and
// the pod begins anew with its init containers, in the same sandbox with the same
// volumes.

// How a container shows that was removed to begin anew.
const (
	reasonRestartingAll  = "RestartingAllContainers"
	messageRestartingAll = "The container is removed because RestartAllContainers in place"
)

// restartable calls f for the containers that restart together.
func restartable(p *corev1.Pod, f func(*corev1.Container)) {
	for i := range p.Spec.InitContainers {
		f(&p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		f(&p.Spec.Containers[i])
	}
}

// asksForAll tells whether a run of a container has ended by a rule that restarts
// all.
func asksForAll(c *corev1.Container, o *record.Observation) bool {
	return o.State == record.Exited && ruled(c, o.ExitCode) == corev1.ContainerRestartRuleActionRestartAllContainers
}

// restartAll begins and ends the restart of all containers; between, Decide removes
// them.
func (w *worker) restartAll(p *corev1.Pod, o *record.Observed) {
	r := w.rec
	if r.Stopping != nil || r.Ended != nil {
		r.RestartingAll = false
		return
	}
	left, asked := false, false
	restartable(p, func(c *corev1.Container) {
		if last := o.Latest(c.Name); last != nil {
			left, asked = true, asked || asksForAll(c, last)
		}
	})
	switch {
	case asked:
		r.RestartingAll = true
		w.interrupt()
	case r.RestartingAll && !left && len(w.busy) == 0:
		r.RestartingAll = false
		restartable(p, func(c *corev1.Container) { beginAnew(r.Containers[c.Name]) })
	}
}

// interrupt gives up what containers do that restart. One that is being made is made: it
// was to run beside the others, and is seen to begin anew as they are.
func (w *worker) interrupt() {
	for _, j := range w.busy {
		if j.kind == Hook || j.kind == Resize || j.kind == Start && j.making.CompareAndSwap(false, true) {
			j.cancel()
		}
	}
}

// beginAnew brings the record of a container up to date that was removed to run
// again; one that never ran has none, or has not ended.
func beginAnew(cr *record.Container) {
	if cr == nil || cr.Seen == nil {
		return
	}
	cr.Seen.State = corev1.ContainerStateTerminated{
		ExitCode: 137, Reason: reasonRestartingAll, Message: messageRestartingAll}
	cr.Fault = &record.Verdict{Reason: reasonRestartingAll, Message: messageRestartingAll}
	cr.Again, cr.Backoff = true, 0
}

// removeAll ends all containers and removes them, those that asked for it last.
func (d *decision) removeAll() {
	if d.endAll() || len(d.Busy) > 0 {
		return
	}
	var last []Action
	restartable(d.Pod, func(c *corev1.Container) {
		for i := range d.Observed.Containers {
			o := &d.Observed.Containers[i]
			if o.Name != c.Name {
				continue
			}
			a := Action{Kind: Remove, Name: o.Name, ID: o.ID, Attempt: o.Attempt, Again: o.State == record.Exited}
			if asksForAll(c, o) {
				last = append(last, a)
			} else {
				d.plan.add(a)
			}
		}
	})
	for _, a := range last {
		d.plan.add(a)
	}
}

// endAll ends what runs without grace, and tells whether anything does.
func (d *decision) endAll() (running bool) {
	restartable(d.Pod, func(c *corev1.Container) {
		for i := range d.Observed.Containers {
			o := &d.Observed.Containers[i]
			if o.Name != c.Name || o.State != record.Running {
				continue
			}
			running = true
			if !d.Busy[o.ID] {
				d.plan.add(Action{Kind: Stop, Name: o.Name, ID: o.ID, Message: "killing"})
			}
		}
	})
	return running
}
