package controller

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// object is a pointer to an API struct.
type object[T any] interface {
	*T
	metav1.Object
}

// Owned is what a controller does when an object changes that is, was or may
// become one of its owners'. Only Kind must be set.
type Owned[T any] struct {
	// Kind is the owners'.
	Kind schema.GroupVersionKind
	// Changed is told of an owner's object that is new or changed. Unset, the owner
	// is reconciled.
	Changed func(owner string, obj *T)
	// Gone is told of an owner's object that is gone (Expectations.Gone), before the
	// owner is reconciled.
	Gone func(owner string, uid types.UID)
	// Orphan is told of an object that nobody controls: an owner may adopt it.
	Orphan func(obj *T)
	// NameFree is told of an object that is gone and was not an owner's: an owner may
	// have waited for its name.
	NameFree func(obj *T)
}

// WatchOwned has the owners of each object that changes reconciled: the one before
// the change, and the one after it.
func WatchOwned[T any, P object[T]](l *Loop, informer cache.SharedIndexInformer, o Owned[T]) {
	if o.Changed == nil {
		o.Changed = func(owner string, _ *T) { l.Add(owner) }
	}
	if o.Gone == nil {
		o.Gone = func(string, types.UID) {}
	}
	if o.Orphan == nil {
		o.Orphan = func(*T) {}
	}
	if o.NameFree == nil {
		o.NameFree = func(*T) {}
	}
	Watch(l, informer, func(old, obj *T) {
		switch {
		case obj == nil:
			lost[T, P](l, o, old)
		case old != nil && P(old).GetResourceVersion() == P(obj).GetResourceVersion(): // told again, as it is
		default:
			changed[T, P](l, o, old, obj)
		}
	})
}

func lost[T any, P object[T]](l *Loop, o Owned[T], obj *T) {
	owner, owned := OwnerKey(P(obj), o.Kind)
	if !owned {
		o.NameFree(obj)
		return
	}
	o.Gone(owner, P(obj).GetUID())
	l.Add(owner)
}

func changed[T any, P object[T]](l *Loop, o Owned[T], old, obj *T) {
	owner, owned := OwnerKey(P(obj), o.Kind)
	if old != nil {
		if before, was := OwnerKey(P(old), o.Kind); was && before != owner {
			l.Add(before)
		}
	}
	switch {
	case owned:
		o.Changed(owner, obj)
	case metav1.GetControllerOfNoCopy(P(obj)) == nil:
		o.Orphan(obj)
	}
}

// AddAdopters has those of owners reconciled whose selector takes an orphan.
func AddAdopters[T any, P object[T]](l *Loop, owners []*T, selector func(*T) *metav1.LabelSelector, orphan metav1.Object) {
	if len(orphan.GetLabels()) == 0 {
		return // a selector of everything adopts nothing
	}
	for _, owner := range owners {
		s, err := metav1.LabelSelectorAsSelector(selector(owner))
		if err == nil && !s.Empty() && s.Matches(labels.Set(orphan.GetLabels())) {
			l.Add(Key(P(owner).GetNamespace(), P(owner).GetName()))
		}
	}
}
