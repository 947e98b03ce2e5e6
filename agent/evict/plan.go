package evict

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Plan decides, from one look at the signals to the next, what the node's conditions
// are and which threshold it acts on. It is pure: the time is given.
type Plan struct {
	// Thresholds are in the order in which they are acted on.
	Thresholds []Threshold
	// Transition is how long a condition lasts after it was seen last.
	Transition time.Duration

	first map[int]time.Time // since when a threshold, by its index, is met
	acted map[int]bool      // met for its grace period; holds until Reclaim is free, too
	seen  map[corev1.NodeConditionType]time.Time
}

// Met is a threshold that is acted on, with what there was.
type Met struct {
	Threshold
	Signal Signal
}

// Step takes a look at the signals. A signal that could not be measured is not there: it
// neither raises nor ends anything, but conditions end by themselves.
func (p *Plan) Step(now time.Time, have map[string]Signal) (map[corev1.NodeConditionType]bool, *Met) {
	first, acted := map[int]time.Time{}, map[int]bool{}
	if p.seen == nil {
		p.seen = map[corev1.NodeConditionType]time.Time{}
	}
	var act *Met
	for i := range p.Thresholds {
		t := &p.Thresholds[i]
		s, ok := have[t.Signal]
		if !ok || s.Capacity == 0 || !t.met(s, false) && !(p.acted[i] && t.met(s, true)) {
			continue
		}
		first[i] = now
		if since, ok := p.first[i]; ok {
			first[i] = since
		}
		p.seen[signals[t.Signal].condition] = now
		if now.Sub(first[i]) < t.Grace {
			continue
		}
		acted[i] = true
		if act == nil {
			act = &Met{Threshold: *t, Signal: s}
		}
	}
	p.first, p.acted = first, acted
	maps.DeleteFunc(p.seen, func(_ corev1.NodeConditionType, at time.Time) bool {
		return !at.Equal(now) && now.Sub(at) >= p.Transition
	})
	conditions := map[corev1.NodeConditionType]bool{}
	for c := range p.seen {
		conditions[c] = true
	}
	return conditions, act
}

// Relieved tells whether no threshold holds, with what is to be freed beyond it.
func (p *Plan) Relieved(have map[string]Signal) bool {
	return !slices.ContainsFunc(p.Thresholds, func(t Threshold) bool {
		s, ok := have[t.Signal]
		return ok && s.Capacity > 0 && t.met(s, true)
	})
}
