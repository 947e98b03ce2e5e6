package nodehealth

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/controller"
)

const (
	// Upstream v1.36's defaults.
	grace        = 50 * time.Second // node-monitor-grace-period
	startupGrace = 60 * time.Second // node-startup-grace-period
	// slack is how much later than its death a node's last Lease renewal may be
	// seen here.
	slack = 1500 * time.Millisecond
)

// seen is what was seen of one node.
type seen struct {
	// member is the gossip's word on it; nil when it is no member.
	member *gossip.Member
	// renewed is when its Lease was last seen to be renewed.
	renewed time.Time
	// last is when its Lease or status was last seen to change.
	last time.Time
	// before are its conditions from before gossip's word turned them Unknown; nil
	// when that did not, or another leader did it.
	before []corev1.NodeCondition
}

// up tells whether the node's agent answers probes now.
func (s *seen) up() bool {
	return s.member != nil && s.member.Role == gossip.RoleAgent && s.member.State.Up()
}

// plan is what is to be done about one node.
type plan struct {
	// verdict is why the conditions change.
	verdict verdict
	// conditions are the node's new ones; nil: they stay.
	conditions []corev1.NodeCondition
	// before is what to keep for when gossip hears of the node again.
	before []corev1.NodeCondition
	// podsNotReady: nobody knows how its pods are, so none is ready.
	podsNotReady bool
	// execute is what is wanted of its NoExecute taints; add waits for its turn.
	execute execute
	// again is when time alone changes the plan; 0: never.
	again time.Duration
}

// verdict is what the witnesses say together.
type verdict int

const (
	// unchanged: the conditions are right as they are.
	unchanged verdict = iota
	// lost: gossip says that the agent is dead.
	lost
	// back: gossip's word was taken back.
	back
	// silent: the Lease has run out too.
	silent
)

// planFor weighs what was seen of a node at a time. Gossip's word is a plan of
// its own: when many nodes are lost at once, all are to be not ready before
// anyone's pods are, and before taints.
func planFor(node *corev1.Node, s seen, now time.Time) plan {
	switch judge(node, s) {
	case lost:
		have := node.Status.Conditions
		return plan{verdict: lost, conditions: unknown(have, now), before: have}
	case back:
		return plan{verdict: back, conditions: restored(node.Status.Conditions, s.before, now)}
	}
	ended, again := lapsed(node, s, now)
	p := plan{before: s.before, again: again}
	status, posted := controller.NodeReadyStatus(node), controller.NodeCondition(node, corev1.NodeReady) != nil
	if ended {
		p.verdict, p.conditions = silent, allUnknown(node, now)
		status, posted = corev1.ConditionUnknown, true
	}
	p.podsNotReady = posted && status == corev1.ConditionUnknown
	p.execute = wantedTaint(status, posted && !tainted(node), ended)
	return p
}

// wantedTaint: without the Lease's end, gossip's word moves no pod.
func wantedTaint(ready corev1.ConditionStatus, taintable, ended bool) execute {
	switch {
	case ready == corev1.ConditionTrue:
		return clear
	case taintable && (ended || ready != corev1.ConditionUnknown):
		return add
	}
	return follow
}

// judge tells what gossip's word means for a node. A renewal of its Lease after
// its death proves that only the gossip is cut off. Conditions that another
// leader turned Unknown are not known from before: the agent says itself how it
// is.
func judge(node *corev1.Node, s seen) verdict {
	ready := controller.NodeCondition(node, corev1.NodeReady)
	switch {
	case s.member == nil || s.member.Role != gossip.RoleAgent || ready == nil:
		return unchanged
	case s.up() || s.renewed.After(s.member.Since.Add(slack)):
		if ready.Status == corev1.ConditionUnknown && ready.Reason == reasonUnknown && s.before != nil {
			return back
		}
		return unchanged
	case ready.Status != corev1.ConditionUnknown:
		return lost
	}
	return unchanged
}

// lapsed tells whether neither gossip nor the Lease tell of a node any more,
// and if not yet, when that would be. One that never posted its status has the
// time from its creation on, and from each renewal of its Lease: then its agent
// lives, whatever keeps it from posting.
func lapsed(node *corev1.Node, s seen, now time.Time) (is bool, in time.Duration) {
	last, limit := s.last, grace
	if controller.NodeCondition(node, corev1.NodeReady) == nil {
		last, limit = node.CreationTimestamp.Time, startupGrace
		if s.renewed.After(last) {
			last = s.renewed
		}
	} else if s.up() {
		return false, grace
	}
	in = last.Add(limit).Sub(now)
	return in <= 0, max(in, 0)
}
