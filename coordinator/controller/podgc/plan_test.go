package podgc

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) { // NODE-28, NODE-58
	now := time.Unix(1000, 0)
	deleted := metav1.NewTime(now)
	pod := func(node string, deleting bool) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
		if deleting {
			p.DeletionTimestamp = &deleted
		}
		return p
	}
	off := &corev1.Node{
		Spec: corev1.NodeSpec{
			Taints: []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}}}
	for _, tt := range []struct {
		name    string
		pod     *corev1.Pod
		node    *corev1.Node
		missing time.Time
		kill    bool
		after   time.Duration
	}{
		{"waits for a node", pod("", false), nil, time.Time{}, false, 0},
		{"unscheduled, being deleted", pod("", true), nil, time.Time{}, true, 0},
		{"node just gone", pod("n", false), nil, now.Add(-10 * time.Second), false, 30 * time.Second},
		{"node gone for long", pod("n", false), nil, now.Add(-40 * time.Second), true, 0},
		{"node out of service", pod("n", true), off, time.Time{}, true, 0},
		{"node out of service, pod not deleted", pod("n", false), off, time.Time{}, false, 0},
		{"being deleted on its node", pod("n", true), &corev1.Node{}, time.Time{}, false, 0},
	} {
		if kill, after := plan(tt.pod, tt.node, tt.missing, now); (kill != nil) != tt.kill || after != tt.after {
			t.Errorf("%s: kill %v, after %v", tt.name, kill != nil, after)
		}
	}
}

func TestSurplus(t *testing.T) {
	var pods []*corev1.Pod
	for i, phase := range []corev1.PodPhase{"Succeeded", "Failed", "Running", "Failed"} {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), CreationTimestamp: metav1.Unix(int64(i), 0)},
			Status:     corev1.PodStatus{Phase: phase}}
		if i == 3 {
			p.Status.Reason = "Evicted"
		}
		pods = append(pods, p)
	}
	if got := surplus(pods, 1); len(got) != 2 || got[0].Name != "3" || got[1].Name != "0" {
		t.Errorf("surplus %v", got)
	}
	for _, none := range []int{0, -1} {
		if got := surplus(pods, none); len(got) != 0 {
			t.Errorf("without a limit %v", got)
		}
	}
}
