package fencing

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/fence"
	"github.com/shoal-project/shoal/coordinator/controller"
)

const (
	// silence is how long the Lease of a node that holds pods must not have been renewed:
	// more than two renewals.
	silence = fence.Length * 6 / 10
	// longSilence is that of a node that renews as usual, each ten seconds.
	longSilence = 15 * time.Second
)

// seen is what is known of a node.
type seen struct {
	node  *corev1.Node
	lease *coordinationv1.Lease // nil: there is none
	// stop and replaced are its pods of these two policies that are not over.
	stop, replaced int
	// renewed is when the Lease was last seen to be renewed, raised when this coordinator
	// first knew of the fence that is on it and of the voters there, refused when these had
	// refused the node.
	renewed, raised, refused time.Time
	// cutOff: most nodes are unknown, so it is probably this coordinator that is cut off.
	cutOff bool
}

// step is what is to be done about a node.
type step int

const (
	nothing step = iota
	// raise a fence.
	raise
	// refuse: have other nodes not vouch for it any more.
	refuse
	// act: delete what does not run any more.
	act
	// lift the fence.
	lift
	// replace only what may run twice.
	replace
)

// planFor says what to do now, and when to ask again where only time can change it.
func planFor(s seen, now time.Time) (do step, again time.Duration) {
	if s.node == nil || s.lease == nil {
		return nothing, 0
	}
	if raised := s.lease.Annotations[fence.Raised]; raised != "" {
		return planRaised(s, raised, now)
	}
	lost := controller.NodeReadyStatus(s.node) == corev1.ConditionUnknown &&
		controller.NodeCondition(s.node, corev1.NodeReady) != nil
	if !lost || s.stop+s.replaced == 0 {
		return nothing, 0
	}
	if s.cutOff {
		return nothing, silence
	}
	covered := s.stop > 0 && fence.CoveredFor(s.lease) > 0
	limit := longSilence
	if covered {
		limit = silence
	}
	if left := s.renewed.Add(limit).Sub(now); left > 0 {
		return nothing, left
	}
	switch {
	case covered:
		return raise, 0
	case s.replaced > 0:
		return replace, 0
	}
	return nothing, 0
}

// planRaised is planFor a node with a fence.
func planRaised(s seen, raised string, now time.Time) (do step, again time.Duration) {
	if s.lease.Annotations[fence.Stopped] == raised {
		return lift, 0
	}
	known := fence.CoveredFor(s.lease) > 0
	length := fence.LengthOf(raised)
	if !known && length == 0 {
		length = fence.Length
	}
	left := s.raised.Add(fence.Wait(length)).Sub(now)
	switch {
	case !known && left > 0:
		return nothing, left
	case !known:
		// The Lease was renewed after the fence, without a word of it: that agent stops nothing,
		// and will not say that it has. One that knows fences would have said so by now.
		return lift, 0
	case length == 0, s.lease.Annotations[fence.Lifting] == raised, s.stop+s.replaced == 0:
		return nothing, 0 // the node has to say that it stopped its pods
	case len(fence.VotersOf(s.lease)) > 0 && s.refused.IsZero():
		return refuse, 0
	}
	if s.refused.After(s.raised) {
		left = s.refused.Add(fence.Wait(length)).Sub(now)
	}
	if left > 0 {
		return nothing, left
	}
	return act, 0
}
