package garbagecollector

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// standing is what one owner reference is worth.
type standing int

const (
	// solid: the owner exists.
	solid standing = iota
	// dangling: the owner does not exist.
	dangling
	// waiting: the owner is in foreground deletion and waits for its dependents.
	waiting
	// unresolvable: a cluster-scoped object names a namespaced owner (GC-4).
	unresolvable
)

// action is what is to be done with a dependent.
type action int

const (
	keep action = iota
	// unlink removes the references in decision.drop.
	unlink
	// deleteForeground, as the owner waits and the object has dependents itself.
	deleteForeground
	// deleteAsAsked by the finalizers it has, background by default.
	deleteAsAsked
)

type decision struct {
	do   action
	drop []types.UID
}

// decide tells what becomes of an object with these references.
func decide(refs []metav1.OwnerReference, of func(*metav1.OwnerReference) standing, hasDependents bool) decision {
	var bad []types.UID
	solids, waits := 0, 0
	for i := range refs {
		switch of(&refs[i]) {
		case unresolvable:
			return decision{do: keep}
		case solid:
			solids++
		case waiting:
			waits++
			bad = append(bad, refs[i].UID)
		case dangling:
			bad = append(bad, refs[i].UID)
		}
	}
	switch {
	case len(refs) == 0 || solids > 0 && len(bad) == 0:
		return decision{do: keep}
	case solids > 0:
		return decision{do: unlink, drop: bad}
	case waits > 0 && hasDependents:
		return decision{do: deleteForeground}
	}
	return decision{do: deleteAsAsked}
}

// policyFor keeps to the deletion that an object's finalizers ask for.
func policyFor(finalizers []string) metav1.DeletionPropagation {
	switch {
	case slices.Contains(finalizers, metav1.FinalizerOrphanDependents):
		return metav1.DeletePropagationOrphan
	case slices.Contains(finalizers, metav1.FinalizerDeleteDependents):
		return metav1.DeletePropagationForeground
	}
	return metav1.DeletePropagationBackground
}

func without(refs []metav1.OwnerReference, drop []types.UID) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(refs), func(r metav1.OwnerReference) bool { return slices.Contains(drop, r.UID) })
}
