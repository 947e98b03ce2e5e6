package nodehealth

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

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
		{"not ready turned unknown", node("Unknown", notReady), follow,
			[]string{"node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"}},
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
