package garbagecollector

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var maps = &resource{
	gvr: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
	gvk: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, namespaced: true,
}

func ref(uid types.UID, block bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: string(uid), UID: uid,
		BlockOwnerDeletion: &block}
}

func obj(uid types.UID, owners ...metav1.OwnerReference) *node {
	return &node{uid: uid, res: maps, namespace: "ns", name: string(uid), owners: owners}
}

func expectLook(t *testing.T, what string, got []types.UID, want ...types.UID) {
	t.Helper()
	slices.Sort(got)
	if !slices.Equal(slices.Compact(got), want) {
		t.Errorf("%s: look at %v, want %v", what, got, want)
	}
}

func TestGraph(t *testing.T) { // GC-7, GC-8, GC-10
	g := newGraph()
	expectLook(t, "an owner", g.put(obj("owner")))
	expectLook(t, "its dependent", g.put(obj("dep", ref("owner", true))))
	expectLook(t, "one whose owner is not known", g.put(obj("lost", ref("never", false))), "lost")

	going := obj("owner")
	going.deleting, going.foreground = true, true
	expectLook(t, "foreground begins", g.put(going), "dep", "owner")
	expectLook(t, "foreground goes on", g.put(going))
	expectLook(t, "the block is taken off", g.put(obj("dep", ref("owner", false))), "owner")
	expectLook(t, "the dependent is gone", g.remove("dep"), "owner")

	g.put(obj("dep", ref("owner", true)))
	expectLook(t, "the owner is gone", g.remove("owner"), "dep")
	if !g.isGone("owner") || g.isGone("dep") {
		t.Error("gone owners are not remembered")
	}
}

func TestOwnerElsewhereIsNoOwner(t *testing.T) { // GC-3
	g := newGraph()
	g.put(obj("owner"))
	stranger := obj("dep", ref("owner", false))
	stranger.namespace = "other"
	expectLook(t, "a dependent in another namespace", g.put(stranger), "dep")
}

func TestDecide(t *testing.T) { // GC-9, GC-11
	of := func(m map[types.UID]standing) func(*metav1.OwnerReference) standing {
		return func(r *metav1.OwnerReference) standing { return m[r.UID] }
	}
	refs := []metav1.OwnerReference{ref("a", true), ref("b", true)}
	for _, tt := range []struct {
		name       string
		a, b       standing
		dependents bool
		want       action
	}{
		{"both there", solid, solid, false, keep},
		{"one left", solid, dangling, false, unlink},
		{"none left", dangling, dangling, true, deleteAsAsked},
		{"owner waits", waiting, dangling, false, deleteAsAsked},
		{"owner waits, has dependents", waiting, dangling, true, deleteForeground},
		{"owner waits, other stays", waiting, solid, true, unlink},
		{"cannot be resolved", unresolvable, dangling, false, keep},
	} {
		if d := decide(refs, of(map[types.UID]standing{"a": tt.a, "b": tt.b}), tt.dependents); d.do != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, d.do, tt.want)
		}
	}
	if d := decide(nil, nil, false); d.do != keep {
		t.Error("an object without owners is not collected")
	}
}
