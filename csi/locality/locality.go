// Package locality is how the API tells on which node the storage driver that ships
// with Shoal keeps a volume, or has to make one:
//
//	claim   ─ annotations: the driver is asked, the scheduler selected a node ─> node
//	volume  ─ node affinity to NodeKey = node, and a label of that name ───────> node
//
// By it nodes find their part of the work, and the API knows what is theirs to read
// and to write.
package locality

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Driver is the name of the driver that ships with Shoal.
const Driver = "local.shoal-project.io"

// NodeKey is the driver's key of topology, whose value is the name of a node: a
// label of Nodes and of the volumes that are kept there.
const NodeKey = Driver + "/node"

// Annotations of claims: which driver is asked, and on which node.
const (
	askedDriver  = "volume.kubernetes.io/storage-provisioner"
	selectedNode = "volume.kubernetes.io/selected-node"
)

// SelectedNode is the selectable field of claims by which a node finds those that
// the scheduler gave to it. No other API server has it.
const SelectedNode = "metadata.annotations[" + selectedNode + "]"

// Class is the name of the StorageClass that a new cluster has.
const Class = "local"

// VolumeName is the name of the volume that is made for a claim, as CSI's
// provisioner names it.
func VolumeName(claim types.UID) string { return "pvc-" + string(claim) }

// AskedOf is the node whose driver makes the claim's volume, or made it; "" where
// the driver was not asked, or no node is selected.
func AskedOf(c *corev1.PersistentVolumeClaim) string {
	if c.Annotations[askedDriver] != Driver {
		return ""
	}
	return c.Annotations[selectedNode]
}

// SourceClaim is the name of the claim, of the same namespace, of whose volume the
// claim's is to be a clone; "" for none.
func SourceClaim(c *corev1.PersistentVolumeClaim) string {
	switch ref, source := c.Spec.DataSourceRef, c.Spec.DataSource; {
	case ref != nil:
		if ref.Kind == claimKind && (ref.APIGroup == nil || *ref.APIGroup == "") &&
			(ref.Namespace == nil || *ref.Namespace == c.Namespace) {
			return ref.Name
		}
	case source != nil:
		if source.Kind == claimKind && (source.APIGroup == nil || *source.APIGroup == "") {
			return source.Name
		}
	}
	return ""
}

const claimKind = "PersistentVolumeClaim"

// SnapshotGroup is that of the API of snapshots, an extension.
const SnapshotGroup = "snapshot.storage.k8s.io"

// SourceSnapshot is the name of the VolumeSnapshot, of the same namespace, that the
// claim's volume is to be made of; "" for none.
func SourceSnapshot(c *corev1.PersistentVolumeClaim) string {
	if s := c.Spec.DataSource; s != nil {
		if s.Kind == snapshotKind && s.APIGroup != nil && *s.APIGroup == SnapshotGroup {
			return s.Name
		}
		return ""
	}
	r := c.Spec.DataSourceRef
	if r == nil || r.Kind != snapshotKind || r.APIGroup == nil || *r.APIGroup != SnapshotGroup ||
		r.Namespace != nil && *r.Namespace != "" {
		return ""
	}
	return r.Name
}

const snapshotKind = "VolumeSnapshot"

// VolumeNode is the node that keeps the volume, "" where it is not one of the
// driver's, or not on one node alone.
func VolumeNode(pv *corev1.PersistentVolume) string {
	c, a := pv.Spec.CSI, pv.Spec.NodeAffinity
	if c == nil || c.Driver != Driver || a == nil || a.Required == nil || len(a.Required.NodeSelectorTerms) != 1 {
		return ""
	}
	term := a.Required.NodeSelectorTerms[0]
	if len(term.MatchFields) != 0 || len(term.MatchExpressions) != 1 {
		return ""
	}
	e := term.MatchExpressions[0]
	if e.Key != NodeKey || e.Operator != corev1.NodeSelectorOpIn || len(e.Values) != 1 {
		return ""
	}
	return e.Values[0]
}

// Affinity is that of a volume on a node.
func Affinity(node string) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: NodeKey, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
			}},
		}},
	}}
}

// CapacityNode is the node whose free space the object tells, "" for none.
func CapacityNode(c *storagev1.CSIStorageCapacity) string {
	t := c.NodeTopology
	if t == nil || len(t.MatchExpressions) != 0 || len(t.MatchLabels) != 1 {
		return ""
	}
	return t.MatchLabels[NodeKey]
}

// Topology is what CapacityNode reads.
func Topology(node string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{NodeKey: node}}
}
