package controller_test

import (
	"log/slog"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// ownedPod is a pod of an owner, "" for an orphan; its labels are the owner's
// selector in this test.
func ownedPod(owner, kind, version string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", ResourceVersion: version,
			Labels: map[string]string{"app": "x"}}}
	if owner != "" {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: kind, Name: owner, UID: types.UID(owner), Controller: &yes}}
	}
	return p
}

// TestWatchOwned: who hears of a change, by who controlled the pod before and after.
func TestWatchOwned(t *testing.T) {
	const rs, ds = "ReplicaSet", "DaemonSet"
	for _, c := range []struct {
		what     string
		old, now *corev1.Pod
		heard    string
	}{
		{"new", nil, ownedPod("a", rs, "1"), "changed ns/a"},
		{"changed", ownedPod("a", rs, "1"), ownedPod("a", rs, "2"), "changed ns/a"},
		{"told again", ownedPod("a", rs, "1"), ownedPod("a", rs, "1"), ""},
		{"handed over", ownedPod("a", rs, "1"), ownedPod("b", rs, "2"), "changed ns/b, added ns/a"},
		{"released", ownedPod("a", rs, "1"), ownedPod("", "", "2"), "orphan, added ns/a"},
		{"adopted", ownedPod("", "", "1"), ownedPod("a", rs, "2"), "changed ns/a"},
		{"gone", ownedPod("a", rs, "1"), nil, "gone ns/a, added ns/a"},
		{"orphan", nil, ownedPod("", "", "1"), "orphan"},
		{"orphan gone", ownedPod("", "", "1"), nil, "name free"},
		{"of another kind", nil, ownedPod("a", ds, "1"), ""},
		{"of another kind, gone", ownedPod("a", ds, "1"), nil, "name free"},
	} {
		var heard []string
		hear := func(s string) { heard = append(heard, s) }
		added := changesOf(c.old, c.now, controller.Owned[corev1.Pod]{
			Kind:     appsv1.SchemeGroupVersion.WithKind(rs),
			Changed:  func(owner string, _ *corev1.Pod) { hear("changed " + owner) },
			Gone:     func(owner string, _ types.UID) { hear("gone " + owner) },
			Orphan:   func(*corev1.Pod) { hear("orphan") },
			NameFree: func(*corev1.Pod) { hear("name free") },
		})
		for _, key := range added {
			hear("added " + key)
		}
		if got := strings.Join(heard, ", "); got != c.heard {
			t.Errorf("%s: %q, want %q", c.what, got, c.heard)
		}
	}
}

// changesOf tells a loop of one change, and returns the keys that it adds.
func changesOf(old, now *corev1.Pod, o controller.Owned[corev1.Pod]) []string {
	informer := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Pods().Informer()
	l := controller.New("test", 1, slog.New(slog.DiscardHandler))
	controller.WatchOwned(l, informer, o)
	return l.Tell(old, now)
}

// TestAddAdopters: an orphan wakes those whose selector takes it, and never one
// whose selector takes everything.
func TestAddAdopters(t *testing.T) {
	set := func(name string, s *metav1.LabelSelector) *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: appsv1.ReplicaSetSpec{Selector: s}}
	}
	sets := []*appsv1.ReplicaSet{
		set("takes", metav1.SetAsLabelSelector(map[string]string{"app": "x"})),
		set("other", metav1.SetAsLabelSelector(map[string]string{"app": "y"})),
		set("everything", &metav1.LabelSelector{}),
		set("nothing", nil),
	}
	l := controller.New("test", 1, slog.New(slog.DiscardHandler))
	selector := func(s *appsv1.ReplicaSet) *metav1.LabelSelector { return s.Spec.Selector }
	controller.AddAdopters(l, sets, selector, ownedPod("", "", "1"))
	controller.AddAdopters(l, sets, selector, &corev1.Pod{})
	if got := strings.Join(l.Added(), ", "); got != "ns/takes" {
		t.Errorf("woken: %q", got)
	}
}
