package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apiserver/pkg/admission"
	storagehelper "k8s.io/component-helpers/storage/volume"

	"github.com/shoal-project/shoal/csi/locality"
)

// A node makes the volumes of the driver that ships with Shoal itself. Who has
// stolen its certificate can do with it what the node could do to these volumes
// anyhow: not take claims of other nodes, nor show a host's path as a volume.

// givenBack lets a node give a claim back to the scheduler, and change nothing else.
func givenBack(node string, a admission.Attributes) error {
	old, ok1 := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	claim, ok2 := a.GetObject().(*corev1.PersistentVolumeClaim)
	if !ok1 || !ok2 || locality.AskedOf(old) != node || old.Spec.VolumeName != "" {
		return forbid(a, "may only update PVC status")
	}
	want, got := old.DeepCopy(), claim.DeepCopy()
	delete(want.Annotations, storagehelper.AnnSelectedNode)
	for _, c := range []*corev1.PersistentVolumeClaim{want, got} {
		c.ResourceVersion, c.ManagedFields = "", nil
	}
	if !equality.Semantic.DeepEqual(want, got) {
		return forbid(a, "node %q may only remove the annotation %s of a claim: %v", node, storagehelper.AnnSelectedNode,
			diff.Diff(want, got))
	}
	return nil
}

// volume lets a node make a volume for a claim that was given to it, and change or
// delete those that it keeps.
func (n *nodeRestriction) volume(ctx context.Context, node string, a admission.Attributes) error {
	obj := a.GetObject()
	if a.GetOperation() == admission.Delete {
		obj = a.GetOldObject()
	}
	pv, ok := obj.(*corev1.PersistentVolume)
	if !ok {
		return forbid(a, "unexpected type %T", obj)
	}
	if locality.VolumeNode(pv) != node || pv.Labels[locality.NodeKey] != node {
		return forbid(a, "node %q may only write volumes of driver %s that it keeps, by label and node affinity", node,
			locality.Driver)
	}
	switch a.GetOperation() {
	case admission.Create:
		return n.newVolume(ctx, node, pv, a)
	case admission.Update:
		return volumeUpdate(node, pv, a)
	}
	return nil
}

func (n *nodeRestriction) newVolume(ctx context.Context, node string, pv *corev1.PersistentVolume,
	a admission.Attributes) error {
	c, ref := pv.Spec.CSI, pv.Spec.ClaimRef
	if c.ControllerPublishSecretRef != nil || c.NodeStageSecretRef != nil || c.NodePublishSecretRef != nil ||
		c.ControllerExpandSecretRef != nil || c.NodeExpandSecretRef != nil {
		return forbid(a, "node %q may not create volumes that name secrets", node)
	}
	if ref == nil || ref.UID == "" || pv.Name != locality.VolumeName(ref.UID) {
		return forbid(a, "node %q may only create volumes that are named by the UID of their claim", node)
	}
	claim, err := n.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return admission.NewForbidden(a, fmt.Errorf("read claim %s/%s: %w", ref.Namespace, ref.Name, err))
	}
	if err != nil || claim.UID != ref.UID {
		// No claim will ever have it: it is released, and reclaimed as its policy says. So
		// the node tells of what it had made when the claim was deleted.
		return nil
	}
	if claim.Spec.VolumeName != "" || locality.AskedOf(claim) != node ||
		storagehelper.GetPersistentVolumeClaimClass(claim) != pv.Spec.StorageClassName {
		return forbid(a, "node %q may only create volumes for claims that the scheduler gave to it: claim %s/%s is none",
			node, ref.Namespace, ref.Name)
	}
	return nil
}

// volumeUpdate lets a node expand a volume and take its finalizers off.
func volumeUpdate(node string, pv *corev1.PersistentVolume, a admission.Attributes) error {
	old, ok := a.GetOldObject().(*corev1.PersistentVolume)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetOldObject())
	}
	want, got := old.DeepCopy(), pv.DeepCopy()
	for _, v := range []*corev1.PersistentVolume{want, got} {
		v.ResourceVersion, v.ManagedFields, v.Finalizers, v.Spec.Capacity = "", nil, nil, nil
	}
	if !equality.Semantic.DeepEqual(want, got) {
		return forbid(a, "node %q may only change capacity and finalizers of a volume: %v", node, diff.Diff(want, got))
	}
	return nil
}

// capacityOf lets a node tell of its own free space.
func capacityOf(node string, a admission.Attributes) error {
	for _, obj := range []any{a.GetObject(), a.GetOldObject()} {
		c, ok := obj.(*storagev1.CSIStorageCapacity)
		if ok && (locality.CapacityNode(c) != node || c.Namespace != metav1.NamespaceSystem) {
			return forbid(a, "node %q may only tell of its own free space, in namespace %s", node,
				metav1.NamespaceSystem)
		}
	}
	return nil
}

// ownLocality keeps a node from drawing pods to itself whose volumes another node
// keeps.
func ownLocality(node string, a admission.Attributes, now, before map[string]string) error {
	if v, ok := now[locality.NodeKey]; ok && v != node && v != before[locality.NodeKey] {
		return forbid(a, "node %q is not allowed to set the label %s to another value than its name", node,
			locality.NodeKey)
	}
	return nil
}
