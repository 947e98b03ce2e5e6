package member

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/controller"
)

func TestJudge(t *testing.T) {
	died := time.Unix(1000, 0)
	node := func(status corev1.ConditionStatus, reason string) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Reason: reason}}}}
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
		{"not a member", node("True", ""), nil, died, nothing},
		{"alive", node("True", ""), agent(gossip.StateAlive), died, nothing},
		{"dead", node("True", ""), agent(gossip.StateDead), died.Add(-5 * time.Second), lost},
		{"left", node("True", ""), agent(gossip.StateLeft), died.Add(-5 * time.Second), lost},
		{"dead already told", node("Unknown", controller.ReasonNodeUnknown), agent(gossip.StateDead), died, nothing},
		{"only the gossip is cut off", node("Unknown", controller.ReasonNodeUnknown), agent(gossip.StateDead), died.Add(3 * time.Second), back},
		{"alive again", node("Unknown", controller.ReasonNodeUnknown), agent(gossip.StateAlive), died, back},
		{"a coordinator", node("True", ""), &gossip.Member{Meta: gossip.Meta{Role: gossip.RoleCoordinator}, State: gossip.StateDead}, died, nothing},
	} {
		if got := judge(tt.node, tt.member, tt.renewed); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestConditionsComeBackAsTheyWere(t *testing.T) {
	now := time.Unix(2000, 0)
	before := []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: "True", Reason: "KubeletReady", Message: "kubelet is posting ready status", LastTransitionTime: metav1.Unix(1, 0)},
		{Type: corev1.NodeDiskPressure, Status: "True", Reason: "KubeletHasDiskPressure"},
		{Type: "Custom", Status: "True"},
	}
	gone := unknown(before, now)
	if gone[0].Status != "Unknown" || gone[1].Status != "Unknown" || gone[2].Status != "True" || before[0].Status != "True" {
		t.Errorf("unknown: %+v", gone)
	}
	if again := restored(gone, before, now); again[0].Reason != "KubeletReady" || again[1].Status != "True" {
		t.Errorf("restored: %+v", again)
	}
}
