package statefulset

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// Claims that are to go with their set or with a pod that is scaled away are
// controlled by it, so that the garbage collector takes them (KEP-1847).

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

func retention(set *appsv1.StatefulSet) (whenScaled, whenDeleted bool) {
	r := set.Spec.PersistentVolumeClaimRetentionPolicy
	if r == nil {
		return false, false
	}
	return r.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
		r.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
}

// claimOwner tells whether set or pod is to control the pod's claims.
func claimOwner(set *appsv1.StatefulSet, pod *corev1.Pod) (bySet, byPod bool) {
	whenScaled, whenDeleted := retention(set)
	byPod = whenScaled && !wanted(set, ordinalOf(pod))
	return whenDeleted && !byPod, byPod
}

// refers tells whether ref names owner, whatever its UID.
func refers(ref *metav1.OwnerReference, owner metav1.Object, kind schema.GroupVersionKind) bool {
	return ref.APIVersion == kind.GroupVersion().String() && ref.Kind == kind.Kind && ref.Name == owner.GetName()
}

func isOwned(claim *corev1.PersistentVolumeClaim, owner metav1.Object) bool {
	return slices.ContainsFunc(claim.OwnerReferences,
		func(ref metav1.OwnerReference) bool { return ref.UID == owner.GetUID() })
}

// isStale tells whether the claim belongs to an earlier object of owner's name:
// it is about to be collected.
func isStale(claim *corev1.PersistentVolumeClaim, owner metav1.Object, kind schema.GroupVersionKind) bool {
	i := slices.IndexFunc(claim.OwnerReferences, func(ref metav1.OwnerReference) bool { return refers(&ref, owner, kind) })
	return i >= 0 && claim.OwnerReferences[i].UID != owner.GetUID()
}

// hasForeignController tells whether somebody else controls a claim that is not
// to be retained always.
func hasForeignController(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	if whenScaled, whenDeleted := retention(set); !whenScaled && !whenDeleted {
		return false
	}
	return slices.ContainsFunc(claim.OwnerReferences, func(ref metav1.OwnerReference) bool {
		switch {
		case refers(&ref, set, ownKind):
			return ref.UID != set.UID
		case refers(&ref, pod, podKind):
			return ref.UID != pod.UID
		}
		return ptr.Deref(ref.Controller, false)
	})
}

// isClaimRight tells whether the claim has the owners that the policy asks for.
// A claim that belongs to earlier objects is left alone.
func isClaimRight(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	if isStale(claim, set, ownKind) || isStale(claim, pod, podKind) {
		return true
	}
	ofSet, ofPod := isOwned(claim, set), isOwned(claim, pod)
	if hasForeignController(claim, set, pod) {
		return !ofSet && !ofPod
	}
	for _, ref := range claim.OwnerReferences {
		if (ref.UID == set.UID || ref.UID == pod.UID) && !ptr.Deref(ref.Controller, false) {
			return false
		}
	}
	bySet, byPod := claimOwner(set, pod)
	return ofSet == bySet && ofPod == byPod
}

// claimOwners returns the claim's owners with those that the policy asks for in
// place of set and pod.
func claimOwners(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, pod *corev1.Pod) []metav1.OwnerReference {
	refs := slices.DeleteFunc(slices.Clone(claim.OwnerReferences), func(ref metav1.OwnerReference) bool {
		return refers(&ref, set, ownKind) || refers(&ref, pod, podKind)
	})
	if hasForeignController(claim, set, pod) {
		return refs
	}
	bySet, byPod := claimOwner(set, pod)
	if bySet {
		refs = append(refs, *metav1.NewControllerRef(set, ownKind))
	}
	if byPod {
		refs = append(refs, *metav1.NewControllerRef(pod, podKind))
	}
	return refs
}
