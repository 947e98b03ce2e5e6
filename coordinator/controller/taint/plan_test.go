package taint

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) { // NODE-26, NODE-39, NODE-47
	added := metav1.NewTime(time.Unix(1000, 0))
	seen := time.Unix(2000, 0)
	unreachable := corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}
	own := corev1.Taint{Key: "own", Effect: corev1.TaintEffectNoExecute}
	tolerate := func(key string, seconds *int64) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			TolerationSeconds: seconds}
	}
	minutes, ten := int64(300), int64(10)
	for _, tt := range []struct {
		name   string
		taints []corev1.Taint
		with   []corev1.Toleration
		at     time.Time
		evict  bool
	}{
		{"not tolerated", []corev1.Taint{unreachable}, nil, added.Time, true},
		{"for five minutes", []corev1.Taint{unreachable},
			[]corev1.Toleration{tolerate(corev1.TaintNodeUnreachable, &minutes)}, added.Add(5 * time.Minute), true},
		{"for ever", []corev1.Taint{unreachable}, []corev1.Toleration{tolerate("", nil)}, time.Time{}, false},
		{"the earliest counts", []corev1.Taint{unreachable, own},
			[]corev1.Toleration{tolerate(corev1.TaintNodeUnreachable, nil), tolerate("own", &ten)},
			seen.Add(10 * time.Second), true},
		{"NoSchedule evicts nobody", []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}},
			nil, time.Time{}, false},
	} {
		if at, evict := plan(tt.with, tt.taints, seen); evict != tt.evict || !at.Equal(tt.at) {
			t.Errorf("%s: %v at %v", tt.name, evict, at)
		}
	}
}
