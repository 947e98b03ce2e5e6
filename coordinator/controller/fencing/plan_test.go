package fencing

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/fence"
)

var now = time.Unix(100000, 0)

func nodeOf(ready corev1.ConditionStatus) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	if ready != "" {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	}
	return n
}

// leaseOf is a Lease that says for how long its node is covered, with annotations.
func leaseOf(covered time.Duration, pairs ...string) *coordinationv1.Lease {
	renewed := metav1.NewMicroTime(now)
	l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}
	l.Annotations = map[string]string{}
	if covered > 0 {
		fence.SetCovered(l, covered)
	}
	for i := 0; i < len(pairs); i += 2 {
		l.Annotations[pairs[i]] = pairs[i+1]
	}
	return l
}

func TestPlan(t *testing.T) {
	const length = 10 * time.Second
	old := now.Add(-time.Minute)
	covered := leaseOf(length)
	raisedAt := now.Add(-fence.Wait(length))
	for _, tt := range []struct {
		name string
		s    seen
		do   step
		wait time.Duration
	}{
		{"ready", seen{node: nodeOf("True"), lease: covered, stop: 1, renewed: old}, nothing, 0},
		{"says itself that it is not ready",
			seen{node: nodeOf("False"), lease: covered, stop: 1, renewed: old}, nothing, 0},
		{"never posted", seen{node: nodeOf(""), lease: covered, stop: 1, renewed: old}, nothing, 0},
		{"no Lease", seen{node: nodeOf("Unknown"), stop: 1, renewed: old}, nothing, 0},
		{"nothing to replace", seen{node: nodeOf("Unknown"), lease: covered, renewed: old}, nothing, 0},
		{"only the gossip lost it", seen{node: nodeOf("Unknown"), lease: covered, stop: 1,
			renewed: now.Add(-time.Second)}, nothing, silence - time.Second},
		{"lost", seen{node: nodeOf("Unknown"), lease: covered, stop: 1, renewed: old}, raise, 0},
		{"lost with most others", seen{node: nodeOf("Unknown"), lease: covered, stop: 1, renewed: old,
			cutOff: true}, nothing, silence},
		{"its agent stops nothing", seen{node: nodeOf("Unknown"), lease: leaseOf(0), stop: 1, renewed: old}, nothing, 0},
		{"what may run twice", seen{node: nodeOf("Unknown"), lease: leaseOf(0), replaced: 1, renewed: old}, replace, 0},
		{"what may run twice, soon",
			seen{node: nodeOf("Unknown"), lease: leaseOf(0), replaced: 1, renewed: now.Add(-silence)},
			nothing, longSilence - silence},
		{"raised just now", seen{node: nodeOf("Unknown"), lease: leaseOf(length, fence.Raised, "10s-x"), stop: 1,
			raised: now}, nothing, fence.Wait(length)},
		{"raised by a node that may hold longer",
			seen{node: nodeOf("Unknown"), lease: leaseOf(length, fence.Raised, "20s-x"), stop: 1,
				raised: raisedAt}, nothing, fence.Wait(20*time.Second) - fence.Wait(length)},
		{"raised for long enough", seen{node: nodeOf("Unknown"), lease: leaseOf(length, fence.Raised, "10s-x"), stop: 1,
			raised: raisedAt}, act, 0},
		{"and the node is back", seen{node: nodeOf("True"), lease: leaseOf(length, fence.Raised, "10s-x"), stop: 1,
			raised: raisedAt}, act, 0},
		{"it has stopped all",
			seen{node: nodeOf("True"), lease: leaseOf(length, fence.Raised, "10s-x", fence.Stopped, "10s-x"), stop: 1,
				raised: now}, lift, 0},
		{"it has stopped all by another fence", seen{node: nodeOf("True"),
			lease: leaseOf(length, fence.Raised, "10s-x", fence.Stopped, "10s-y"), stop: 1, raised: now}, nothing,
			fence.Wait(length)},
		{"it is being lifted",
			seen{node: nodeOf("True"), lease: leaseOf(length, fence.Raised, "10s-x", fence.Lifting, "10s-x"), stop: 1,
				raised: raisedAt}, nothing, 0},
		{"renewed by an agent that knows no fences", seen{node: nodeOf("True"), lease: leaseOf(0, fence.Raised, "10s-x"),
			stop: 1, raised: now.Add(-fence.Wait(length) + time.Second)}, nothing, time.Second},
		{"and that is all that will come", seen{node: nodeOf("True"), lease: leaseOf(0, fence.Raised, "10s-x"), stop: 1,
			raised: raisedAt}, lift, 0},
		{"and it is lost again", seen{node: nodeOf("Unknown"), lease: leaseOf(0, fence.Raised, "10s-x"), stop: 1,
			raised: raisedAt}, lift, 0},
		{"and the lifting was cut short", seen{node: nodeOf("True"),
			lease: leaseOf(0, fence.Raised, "10s-x", fence.Lifting, "10s-x"), raised: raisedAt}, lift, 0},
		{"made by an agent that was then replaced by such a one", seen{node: nodeOf("True"),
			lease: leaseOf(0, fence.Raised, "made-by-agent-x"), raised: raisedAt}, lift, 0},
		{"others may vouch for it", seen{node: nodeOf("Unknown"), lease: held(fence.Raised, "10s-x"), stop: 1,
			raised: raisedAt}, refuse, 0},
		{"and have refused", seen{node: nodeOf("Unknown"), lease: held(fence.Raised, "10s-x"), stop: 1,
			raised: raisedAt, refused: now.Add(-time.Second)}, nothing, fence.Wait(length) - time.Second},
		{"long ago", seen{node: nodeOf("Unknown"), lease: held(fence.Raised, "10s-x"), stop: 1,
			raised: raisedAt, refused: raisedAt}, act, 0},
		{"others may vouch for one that stopped all", seen{node: nodeOf("True"),
			lease: held(fence.Raised, "10s-x", fence.Stopped, "10s-x"), stop: 1, raised: raisedAt}, lift, 0},
		{"made by the agent", seen{node: nodeOf("Unknown"),
			lease: leaseOf(length, fence.Raised, "made-by-agent-x"), stop: 1, raised: old}, nothing, 0},
	} {
		if do, wait := planFor(tt.s, now); do != tt.do || wait != tt.wait {
			t.Errorf("%s: %d after %s, want %d after %s", tt.name, do, wait, tt.do, tt.wait)
		}
	}
}
