package pod

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// leastGrace is what a container has to end, in seconds, when its pod's grace period has
// been used up by what had to end before it.
const leastGrace = 2

// end decides for a pod that is being stopped.
func (d *decision) end() {
	s := d.Record.Stopping
	left := max(0, s.Grace-int64(d.Now.Sub(s.Since)/time.Second))
	if d.stopAll(left, s.Grace > 0) || len(d.Busy) > 0 {
		return
	}
	switch {
	case !d.Record.Released:
		d.plan.add(Action{Kind: Release})
	case d.Removed:
		d.plan.add(Action{Kind: Forget})
	case d.Pod.DeletionTimestamp != nil:
		d.plan.add(Action{Kind: Finish})
	case d.Claimed && d.Record.Ended == nil:
		// Its source did not have it, and has it again, as a manifest that was moved
		// away and back: it begins anew.
		d.plan.add(Action{Kind: Forget})
	}
}

// stopAll stops what runs, and tells whether anything still does: sidecars after the
// others and last first, as long as there is time for that; then all that are left. The
// preStop hooks of all run at once. Each has leastGrace at least, if the pod had any grace.
func (d *decision) stopAll(grace int64, graceful bool) bool {
	sidecars := map[string]int{}
	for i := range d.Pod.Spec.InitContainers {
		if record.Sidecar(&d.Pod.Spec.InitContainers[i]) {
			sidecars[d.Pod.Spec.InitContainers[i].Name] = i
		}
	}
	var waiting []*record.Observation
	others := false
	running := false
	for i := range d.Observed.Containers {
		o := &d.Observed.Containers[i]
		if o.State != record.Running && o.State != record.Created {
			continue
		}
		if o.State == record.Created && d.Busy[o.Name] {
			running = true
			continue
		}
		if o.State == record.Created {
			d.plan.add(Action{Kind: Remove, Name: o.Name, ID: o.ID, Attempt: o.Attempt})
			continue
		}
		running = true
		if _, ok := sidecars[o.Name]; ok {
			waiting = append(waiting, o)
			continue
		}
		others = true
		d.stop(o, least(grace, graceful), false)
	}
	slices.SortFunc(waiting, func(a, b *record.Observation) int { return cmp.Compare(sidecars[b.Name], sidecars[a.Name]) })
	for i, o := range waiting {
		turn := grace == 0 || !others && i == 0
		if turn && d.Waiting[o.ID] {
			d.plan.add(Action{Kind: Proceed, Name: o.Name, ID: o.ID})
			continue
		}
		d.stop(o, least(grace, graceful), !turn)
	}
	return running
}

func least(grace int64, graceful bool) int64 {
	if !graceful {
		return grace
	}
	return max(grace, leastGrace)
}

func (d *decision) stop(o *record.Observation, grace int64, wait bool) {
	if !d.Busy[o.ID] {
		d.plan.add(Action{Kind: Stop, Name: o.Name, ID: o.ID, Grace: grace, Wait: wait,
			Message: "Stopping container " + o.Name})
	}
}

// stopping says when and with how much grace a pod must end, nil when it
// shall run. A later, shorter wish wins.
func stopping(p *corev1.Pod, r *record.Pod, removed bool, now time.Time) *record.Stopping {
	cur := r.Stopping
	grace := defaultGrace(p)
	switch {
	case p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil:
		grace = *p.DeletionGracePeriodSeconds
	case removed || p.DeletionTimestamp != nil || r.Ended != nil:
	default:
		return cur
	}
	if cur == nil {
		return &record.Stopping{Since: now, Grace: grace}
	}
	if left := cur.Grace - int64(now.Sub(cur.Since)/time.Second); grace < left {
		return &record.Stopping{Since: now, Grace: grace}
	}
	return cur
}

func defaultGrace(p *corev1.Pod) int64 {
	if p.Spec.TerminationGracePeriodSeconds != nil {
		return *p.Spec.TerminationGracePeriodSeconds
	}
	return 30
}
