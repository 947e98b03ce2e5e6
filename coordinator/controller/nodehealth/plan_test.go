package nodehealth

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Unix(100000, 0)

func node(ready corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Taints: taints}}
	if ready != "" {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	}
	return n
}

func TestSilent(t *testing.T) { // NODE-21, NODE-38
	for _, tt := range []struct {
		name string
		node *corev1.Node
		h    heard
		want bool
	}{
		{"renewed", node("True"), heard{last: now.Add(-49 * time.Second)}, false},
		{"grace over", node("True"), heard{last: now.Add(-50 * time.Second)}, true},
		{"gossip hears it", node("True"), heard{gossip: true, last: now.Add(-time.Hour)}, false},
		{"starting", node(""), heard{last: now.Add(-55 * time.Second)}, false},
		{"never came", node(""), heard{gossip: true, last: now.Add(-60 * time.Second)}, true},
	} {
		if got, _ := silent(tt.node, tt.h, now); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

func TestTaints(t *testing.T) { // NODE-29, NODE-48
	own := corev1.Taint{Key: "mine", Value: "v", Effect: corev1.TaintEffectNoSchedule}
	notReady := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}
	for _, tt := range []struct {
		name string
		node *corev1.Node
		ex   execute
		want []string
	}{
		{"well", node("True", own, notReady), clear, []string{"mine:NoSchedule"}},
		{"unknown, no eviction yet", node("Unknown", own), follow, []string{"mine:NoSchedule", "node.kubernetes.io/unreachable:NoSchedule"}},
		{"unknown, evict", node("Unknown"), add, []string{"node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"}},
		{"not ready turned unknown", node("Unknown", notReady), follow, []string{"node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, changed := taints(tt.node, tt.ex, now)
			have := map[string]bool{}
			for _, g := range got {
				have[g.Key+":"+string(g.Effect)] = true
			}
			for _, w := range tt.want {
				if !have[w] {
					t.Errorf("lacks %s", w)
				}
			}
			if len(got) != len(tt.want) || !changed {
				t.Errorf("got %v, changed %v", got, changed)
			}
			again := tt.node.DeepCopy()
			again.Spec.Taints = got
			if _, changed := taints(again, follow, now); changed && tt.ex != clear {
				t.Error("not stable")
			}
		})
	}
	cordoned := node("True")
	cordoned.Spec.Unschedulable = true
	if got, _ := taints(cordoned, clear, now); len(got) != 1 || got[0].Key != corev1.TaintNodeUnschedulable {
		t.Errorf("cordoned: %v", got)
	}
}

func TestRate(t *testing.T) { // NODE-41..45
	for _, tt := range []struct {
		ready, not int
		want       float64
	}{
		{10, 1, 0.1}, {1, 2, 0.1}, {2, 3, 0}, {40, 60, 0.01}, {0, 5, 0.1},
	} {
		if got := rate(tt.ready, tt.not); got != tt.want {
			t.Errorf("%d ready, %d not: %v", tt.ready, tt.not, got)
		}
	}
}
