package controller

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

type historyRig struct {
	History
	owner *appsv1.StatefulSet
}

func newHistoryRig() *historyRig {
	ix := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{ByController: func(obj any) ([]string, error) {
		return []string{string(metav1.GetControllerOf(obj.(metav1.Object)).UID)}, nil
	}})
	return &historyRig{
		History: History{Client: fake.NewClientset(), Revisions: ix,
			Kind: appsv1.SchemeGroupVersion.WithKind("StatefulSet"), HashLabel: "hash"},
		owner: &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "u"}},
	}
}

// sync syncs a template with an image, and shows the result in the cache.
func (r *historyRig) sync(t *testing.T, image string) Revisions {
	t.Helper()
	r.owner.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: image}}
	out, err := r.Sync(t.Context(), Revised{
		Owner: r.owner, Template: &r.owner.Spec.Template, Selector: &metav1.LabelSelector{},
		Collisions: r.owner.Status.CollisionCount,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Revisions.Update(out.Update); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRollback: a template that was there before gets its revision back, with
// the highest number (STS-29, DEP-39).
func TestRollback(t *testing.T) {
	r := newHistoryRig()
	one := r.sync(t, "one").Update
	two := r.sync(t, "two")
	if one.Revision != 1 || two.Update.Revision != 2 || len(two.Old) != 1 || two.Named(one.Name) == nil {
		t.Errorf("first %d, then %+v", one.Revision, two)
	}
	back := r.sync(t, "one")
	if back.Update.Name != one.Name || back.Update.Revision != 3 || len(back.Old) != 1 {
		t.Errorf("got %+v", back)
	}
	if again := r.sync(t, "one"); again.Update.Revision != 3 {
		t.Errorf("without a change: revision %d", again.Update.Revision)
	}
	template, err := TemplateOf(two.Update)
	if err != nil || template.Spec.Containers[0].Image != "two" {
		t.Errorf("template %+v, %v", template, err)
	}
}

// TestCollision: another's revision has the name; the count makes a new one.
func TestCollision(t *testing.T) {
	r := newHistoryRig()
	r.owner.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "one"}}
	patch, err := patchOf(&r.owner.Spec.Template)
	if err != nil {
		t.Fatal(err)
	}
	taken := r.revision(Revised{Owner: r.owner, Template: &r.owner.Spec.Template}, patch, 1, nil)
	taken.Data = runtime.RawExtension{Raw: []byte("{}")}
	if _, err := r.Client.AppsV1().ControllerRevisions("ns").Create(t.Context(), taken,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out := r.sync(t, "one")
	if out.Update.Name == taken.Name || ptr.Deref(out.Collisions, 0) != 1 {
		t.Errorf("revision %s, %v collisions", out.Update.Name, out.Collisions)
	}
}

func TestExpired(t *testing.T) {
	var old []*appsv1.ControllerRevision
	for i := range 4 {
		old = append(old, &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}})
	}
	live := func(r *appsv1.ControllerRevision) bool { return r.Name == "0" }
	for limit, want := range map[int]int{-1: 0, 0: 3, 2: 1, 10: 0} {
		if got := expired(old, limit, live); len(got) != want || want > 0 && got[0].Name != "1" {
			t.Errorf("limit %d: %v", limit, got)
		}
	}
}
