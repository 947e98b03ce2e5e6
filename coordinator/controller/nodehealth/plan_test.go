package nodehealth

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/controller"
)

var now = time.Unix(100000, 0)

func node(ready corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Taints: taints}}
	if ready != "" {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	}
	return n
}

func TestJudge(t *testing.T) {
	died := time.Unix(1000, 0)
	node := func(status corev1.ConditionStatus, reason string) *corev1.Node {
		return &corev1.Node{
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Reason: reason}}}}
	}
	agent := func(s gossip.State) *gossip.Member {
		return &gossip.Member{Meta: gossip.Meta{Role: gossip.RoleAgent}, State: s, Since: died}
	}
	for _, tt := range []struct {
		name    string
		node    *corev1.Node
		member  *gossip.Member
		renewed time.Time
		want    verdict
	}{
		{"not a member", node("True", ""), nil, died, unchanged},
		{"alive", node("True", ""), agent(gossip.StateAlive), died, unchanged},
		{"dead", node("True", ""), agent(gossip.StateDead), died.Add(-5 * time.Second), lost},
		{"left", node("True", ""), agent(gossip.StateLeft), died.Add(-5 * time.Second), lost},
		{"dead already told", node("Unknown", reasonUnknown), agent(gossip.StateDead), died, unchanged},
		{"only the gossip is cut off", node("Unknown", reasonUnknown), agent(gossip.StateDead),
			died.Add(3 * time.Second), back},
		{"alive again", node("Unknown", reasonUnknown), agent(gossip.StateAlive), died, back},
		{"a coordinator", node("True", ""),
			&gossip.Member{Meta: gossip.Meta{Role: gossip.RoleCoordinator}, State: gossip.StateDead}, died, unchanged},
	} {
		s := seen{member: tt.member, renewed: tt.renewed, before: node("True", "").Status.Conditions}
		if got := judge(tt.node, s); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestBackOnlyWithWhatWasBefore(t *testing.T) {
	n := node("Unknown")
	n.Status.Conditions[0].Reason = reasonUnknown
	up := &gossip.Member{Meta: gossip.Meta{Role: gossip.RoleAgent}, State: gossip.StateAlive}
	if got := judge(n, seen{member: up}); got != unchanged {
		t.Errorf("%v: nobody knows what the conditions were, the agent will say", got)
	}
}

func TestLapsed(t *testing.T) { // NODE-21, NODE-38
	up := &gossip.Member{Meta: gossip.Meta{Role: gossip.RoleAgent}, State: gossip.StateAlive}
	created := func(ago time.Duration) *corev1.Node {
		n := node("")
		n.CreationTimestamp = metav1.NewTime(now.Add(-ago))
		return n
	}
	for _, tt := range []struct {
		name string
		node *corev1.Node
		s    seen
		want bool
	}{
		{"renewed", node("True"), seen{last: now.Add(-49 * time.Second)}, false},
		{"grace over", node("True"), seen{last: now.Add(-50 * time.Second)}, true},
		{"gossip hears it", node("True"), seen{member: up, last: now.Add(-time.Hour)}, false},
		{"starting", created(55 * time.Second), seen{}, false},
		{"never came", created(60 * time.Second), seen{member: up, last: now}, true},
	} {
		if got, _ := lapsed(tt.node, tt.s, now); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// TestPlanWeighsBothWitnesses: what is wanted for each of the words that gossip
// and Lease can give on a node that is ready, and on one that is Unknown.
func TestPlanWeighsBothWitnesses(t *testing.T) {
	died := now.Add(-20 * time.Second)
	agent := func(s gossip.State) *gossip.Member {
		return &gossip.Member{Meta: gossip.Meta{Role: gossip.RoleAgent}, State: s, Since: died}
	}
	was := node("True").Status.Conditions
	lostNode := node("")
	lostNode.Status.Conditions = unknown(was, died)
	fresh, ended := now.Add(-10*time.Second), now.Add(-50*time.Second)
	for _, tt := range []struct {
		name    string
		node    *corev1.Node
		s       seen
		verdict verdict
		ready   corev1.ConditionStatus
		pods    bool
		execute execute
	}{
		{"both well", node("True"), seen{member: agent(gossip.StateAlive), last: fresh}, unchanged, "True", false, clear},
		{"gossip lost it", node("True"), seen{member: agent(gossip.StateDead), last: fresh}, lost,
			"Unknown", false, clear},
		{"and now its pods", lostNode, seen{member: agent(gossip.StateDead), last: fresh, before: was}, unchanged,
			"Unknown", true, follow},
		{"the Lease ran out too", lostNode, seen{member: agent(gossip.StateDead), last: ended, before: was},
			silent, "Unknown", true, add},
		{"the Lease goes on", lostNode, seen{member: agent(gossip.StateDead), renewed: fresh, last: fresh, before: was},
			back, "True", false, clear},
		{"gossip hears it", lostNode, seen{member: agent(gossip.StateAlive), last: ended, before: was},
			back, "True", false, clear},
		{"no gossip, Lease over", node("True"), seen{last: ended}, silent, "Unknown", true, add},
		{"only the Lease is over", node("True"), seen{member: agent(gossip.StateAlive), last: ended},
			unchanged, "True", false, clear},
		{"it says itself that it is not ready", node("False"), seen{member: agent(gossip.StateAlive), last: fresh},
			unchanged, "False", false, add},
	} {
		p := planFor(tt.node, tt.s, now)
		after := *tt.node
		if p.conditions != nil {
			after.Status.Conditions = p.conditions
		}
		if ready := controller.NodeReadyStatus(&after); p.verdict != tt.verdict || ready != tt.ready ||
			p.podsNotReady != tt.pods || p.execute != tt.execute {
			t.Errorf("%s: Ready %s, %+v", tt.name, ready, p)
		}
	}
}
