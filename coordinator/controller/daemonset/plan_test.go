package daemonset

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"
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
	v := &view{ds: ds, place: placementOf(ds), hash: "new", now: now}
	for i := range nodes {
		v.nodes = append(v.nodes, node(fmt.Sprint("n", i)))
	}
	v.take(pods)
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

// TestTolerations: what every daemon pod tolerates it tolerates for ever, whatever its template
// says; one with tolerationSeconds would let it be evicted, and made again at once.
func TestTolerations(t *testing.T) {
	ds, seconds := set(0, 1), int64(60)
	ds.Spec.Template.Spec.Tolerations = []corev1.Toleration{
		{Key: "mine", Operator: corev1.TolerationOpExists},
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			TolerationSeconds: &seconds},
	}
	got := newPod(ds, "n1", "h").Spec.Tolerations
	if len(got) != len(tolerations)+1 || got[0].Key != "mine" {
		t.Errorf("got %v", got)
	}
	for _, one := range got {
		if one.TolerationSeconds != nil {
			t.Errorf("%s is tolerated for a while only", one.Key)
		}
	}
}

// TestLeavingPods: a pod that is over and deleted, and that a finalizer holds, does not keep
// its node's place.
func TestLeavingPods(t *testing.T) {
	held := pod("a", "n0", "new", false)
	held.Status.Phase, held.DeletionTimestamp = corev1.PodFailed, &metav1.Time{Time: now}
	v := see(set(0, 1), 1, held)
	if do := v.manage(); fmt.Sprint(do.create) != "[n0]" || len(do.del)+len(do.failed) != 0 {
		t.Errorf("got %+v", do)
	}
	if s, _ := v.status(); s.CurrentNumberScheduled != 0 {
		t.Errorf("status %+v", s)
	}
}

// TestFailedPodsWait: failed pods are replaced after a growing time, but at once when the set
// was changed since.
func TestFailedPodsWait(t *testing.T) {
	r := &reconciler{backoff: map[string]map[string]pause{}, events: &record.FakeRecorder{}}
	ds := set(0, 1)
	for _, step := range []struct {
		after      time.Duration
		generation int64
		deleted    int
	}{{0, 1, 1}, {500 * time.Millisecond, 1, 0}, {time.Second, 1, 1}, {2 * time.Second, 1, 0}, {2 * time.Second, 2, 1}} {
		ds.Generation = step.generation
		v := &view{ds: ds, now: now.Add(step.after)}
		do := todo{failed: map[string]*corev1.Pod{"n0": pod("a", "n0", "new", false)}}
		if r.failedPods("k", v, &do); len(do.del) != step.deleted {
			t.Errorf("after %v, generation %d: %d are deleted", step.after, step.generation, len(do.del))
		}
	}
}

func TestManage(t *testing.T) {
	lost := pod("c", "", "new", false)
	pin(&lost.Spec, "vanished")
	do := see(set(0, 1), 2, pod("a", "n0", "new", true), pod("b", "n0", "new", true), lost).manage()
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
