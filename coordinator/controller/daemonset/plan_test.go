package daemonset

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var now = time.Unix(100000, 0)

func node(name string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"disk": "ssd"}},
		Spec: corev1.NodeSpec{Taints: taints}}
}

func set(surge, unavailable int32) *appsv1.DaemonSet {
	s, u := intstr.FromInt32(surge), intstr.FromInt32(unavailable)
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "ds"},
		Spec: appsv1.DaemonSetSpec{UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
			Type:          appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: &s, MaxUnavailable: &u},
		}}}
}

func pod(name, node, hash string, ready bool) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: hash}}}
	p.Spec.NodeName = node
	if ready {
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}}
	}
	return p
}

func see(ds *appsv1.DaemonSet, nodes int, pods ...*corev1.Pod) *view {
	v := &view{ds: ds, pods: map[string][]*corev1.Pod{}, place: placementOf(ds), hash: "new", now: now}
	for i := range nodes {
		v.nodes = append(v.nodes, node(fmt.Sprint("n", i)))
	}
	for _, p := range pods {
		v.pods[target(p)] = append(v.pods[target(p)], p)
	}
	return v
}

func TestPlacement(t *testing.T) { // NODE-18
	ds := set(0, 1)
	ds.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	p := placementOf(ds)
	other := node("other")
	other.Labels = nil
	for _, tt := range []struct {
		name      string
		node      *corev1.Node
		run, stay bool
	}{
		{"plain", node("a"), true, true},
		{"selector", other, false, false},
		{"cordoned", node("a", corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}),
			true, true},
		{"unreachable", node("a", corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}),
			true, true},
		{"NoSchedule", node("a", corev1.Taint{Key: "x", Effect: corev1.TaintEffectNoSchedule}), false, true},
		{"NoExecute", node("a", corev1.Taint{Key: "x", Effect: corev1.TaintEffectNoExecute}), false, false},
	} {
		if run, stay := p.on(tt.node); run != tt.run || stay != tt.stay {
			t.Errorf("%s: run %v, stay %v", tt.name, run, stay)
		}
	}
}

func TestPodIsPinned(t *testing.T) {
	p := newPod(set(0, 1), "n1", "h")
	if target(p) != "n1" || p.Labels[appsv1.ControllerRevisionHashLabelKey] != "h" ||
		len(p.Spec.Tolerations) != len(tolerations) {
		t.Errorf("made %+v", p)
	}
}

func TestManage(t *testing.T) {
	v := see(set(0, 1), 2, pod("a", "n0", "new", true), pod("b", "n0", "new", true), pod("c", "", "new", false))
	pin(&v.pods[""][0].Spec, "vanished")
	v.pods = map[string][]*corev1.Pod{"n0": v.pods["n0"], "vanished": v.pods[""]}
	do := v.manage()
	if fmt.Sprint(do.create) != "[n1]" || len(do.del) != 2 {
		t.Errorf("create %v, delete %d", do.create, len(do.del))
	}
}

func TestRoll(t *testing.T) {
	old := []*corev1.Pod{pod("a", "n0", "old", true), pod("b", "n1", "old", true), pod("c", "n2", "old", false)}
	if do := see(set(0, 1), 3, old...).roll(); len(do.del) != 1 || do.del[0].Name != "c" {
		t.Errorf("unavailable first: %+v", do)
	}
	if do := see(set(0, 2), 3, old...).roll(); len(do.del) != 2 {
		t.Errorf("one more is allowed: %+v", do)
	}
	if do := see(set(1, 0), 3, old...).roll(); fmt.Sprint(do.create) != "[n2 n0]" || len(do.del) != 0 {
		t.Errorf("surge: %+v", do)
	}
	both := append(old, pod("d", "n0", "new", true))
	if do := see(set(1, 0), 3, both...).roll(); len(do.del) != 1 || do.del[0].Name != "a" {
		t.Errorf("successor is available: %+v", do)
	}
}

func TestStatus(t *testing.T) {
	v := see(set(0, 1), 3, pod("a", "n0", "new", true), pod("b", "n1", "old", false))
	s, _ := v.status()
	if s.DesiredNumberScheduled != 3 || s.CurrentNumberScheduled != 2 || s.NumberReady != 1 ||
		s.UpdatedNumberScheduled != 1 || s.NumberUnavailable != 2 {
		t.Errorf("%+v", s)
	}
}
