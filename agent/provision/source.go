package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagehelper "k8s.io/component-helpers/storage/volume"

	"github.com/shoal-project/shoal/csi"
	"github.com/shoal-project/shoal/csi/locality"
)

// Kinds of objects that a volume can be filled from, and what the API of snapshots,
// which is an extension, calls its own.
const (
	claimKind     = "PersistentVolumeClaim"
	snapshotKind  = "VolumeSnapshot"
	snapshotGroup = locality.SnapshotGroup
	snapshots     = "/apis/" + snapshotGroup + "/v1/"
	// managedBy is the label of contents of snapshots whose driver is one of each node.
	managedBy = locality.ManagedBy
	// modeMayChange lets a snapshot of a device become a file system, or the reverse.
	modeMayChange = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
)

var (
	// errNoSourceHere has the claim given back: another node may have its source.
	errNoSourceHere = errors.New("its source is not on this node")
	// errPopulator has the claim left alone.
	errPopulator = errors.New("an external populator makes the volume")
	// errImpossible stands until the claim changes.
	errImpossible = errors.New("no volume can be made of this source")
)

// origin is the object that a claim's volume is to be filled from.
type origin struct{ group, kind, name string }

// originOf is the zero value for an empty volume.
func originOf(c *corev1.PersistentVolumeClaim) (o origin, err error) {
	switch source, ref := c.Spec.DataSource, c.Spec.DataSourceRef; {
	case source != nil:
		o = origin{text(source.APIGroup), source.Kind, source.Name}
	case ref != nil && text(ref.Namespace) != "":
		return o, fmt.Errorf("%w: dataSourceRef namespace specified but the CrossNamespaceVolumeDataSource feature is"+
			" disabled: remove spec.dataSourceRef.namespace", errImpossible)
	case ref != nil:
		o = origin{text(ref.APIGroup), ref.Kind, ref.Name}
	default:
		return o, nil
	}
	switch {
	case o.name == "":
		return o, fmt.Errorf("%w: the PVC source not found for PVC %s", errImpossible, c.Name)
	case o.kind == snapshotKind && o.group != snapshotGroup:
		return o, fmt.Errorf("%w: the PVC source does not belong to the right APIGroup. Expected %s, Got %s",
			errImpossible, snapshotGroup, o.group)
	case o.kind == snapshotKind || o.kind == claimKind && o.group == "":
		return o, nil
	}
	return o, errPopulator
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// source is what the driver is to fill a claim's volume from.
func (p *Provisioner) source(ctx context.Context, claim *corev1.PersistentVolumeClaim) (s csi.Source, err error) {
	from, err := originOf(claim)
	if err != nil || from == (origin{}) {
		return s, err
	}
	if from.kind == claimKind {
		s.Volume, err = p.volumeOf(claim, from.name)
	} else {
		s.Snapshot, err = p.snapshot(ctx, claim, from.name)
	}
	if err != nil {
		err = fmt.Errorf("error getting handle for DataSource Type %s by Name %s: %w", from.kind, from.name, err)
	}
	return s, err
}

// volumeOf is the handle of the volume, kept by this node, of another claim of the
// same namespace, which has to be like the one that it is to be cloned for.
func (p *Provisioner) volumeOf(claim *corev1.PersistentVolumeClaim, name string) (string, error) {
	if !p.volumes.complete.Load() {
		return "", errors.New("the volumes of this node are not known yet")
	}
	pv := p.claimed(claim.Namespace, name)
	if pv == nil {
		return "", fmt.Errorf("%w: claim %s has no volume of driver %s on node %s", errNoSourceHere, name,
			locality.Driver, p.Node)
	}
	least := pv.Spec.Capacity[corev1.ResourceStorage]
	source, ok := p.claims.get(key{claim.Namespace, name}).(*corev1.PersistentVolumeClaim)
	if ok && source.UID == pv.Spec.ClaimRef.UID {
		least = source.Spec.Resources.Requests[corev1.ResourceStorage] // the volume may have more
	}
	switch wanted := claim.Spec.Resources.Requests[corev1.ResourceStorage]; {
	case ok && source.DeletionTimestamp != nil:
		return "", fmt.Errorf("the PVC DataSource %s is currently being deleted", name)
	case pv.Status.Phase != corev1.VolumeBound:
		return "", fmt.Errorf("the PVC DataSource %s must have a status of Bound: its volume %s is %s", name, pv.Name,
			pv.Status.Phase)
	case wanted.Cmp(least) < 0:
		return "", fmt.Errorf("%w: new PVC request must be greater than or equal in size to the specified PVC data"+
			" source, requested %d but source is %d", errImpossible, wanted.Value(), least.Value())
	case isBlock(claim.Spec.VolumeMode) != isBlock(pv.Spec.VolumeMode):
		return "", fmt.Errorf("%w: the source PVC and destination PVCs must have the same volume mode for cloning."+
			"  Source is %s, but new PVC requested %s", errImpossible, mode(pv.Spec.VolumeMode),
			mode(claim.Spec.VolumeMode))
	}
	return pv.Spec.CSI.VolumeHandle, nil
}

// claimed is the volume of a claim, of those that this node keeps.
func (p *Provisioner) claimed(namespace, name string) *corev1.PersistentVolume {
	for _, obj := range p.volumes.List() {
		pv, ok := obj.(*corev1.PersistentVolume)
		if !ok || locality.VolumeNode(pv) != p.Node || pv.Status.Phase == corev1.VolumeReleased {
			continue
		}
		if ref := pv.Spec.ClaimRef; ref != nil && ref.Namespace == namespace && ref.Name == name {
			return pv
		}
	}
	return nil
}

func isBlock(m *corev1.PersistentVolumeMode) bool { return mode(m) == corev1.PersistentVolumeBlock }

func mode(m *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if m == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *m
}

// volumeSnapshot and content are what this package reads of the API of snapshots.
type (
	volumeSnapshot struct {
		metav1.ObjectMeta `json:"metadata"`
		Status            struct {
			Content     string             `json:"boundVolumeSnapshotContentName"`
			Ready       bool               `json:"readyToUse"`
			RestoreSize *resource.Quantity `json:"restoreSize"`
		} `json:"status"`
	}
	content struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Driver     string                       `json:"driver"`
			Snapshot   corev1.ObjectReference       `json:"volumeSnapshotRef"`
			SourceMode *corev1.PersistentVolumeMode `json:"sourceVolumeMode"`
		} `json:"spec"`
		Status struct {
			Handle string `json:"snapshotHandle"`
		} `json:"status"`
	}
)

// snapshot is the handle of a snapshot of the claim's namespace.
func (p *Provisioner) snapshot(ctx context.Context, claim *corev1.PersistentVolumeClaim, name string) (string, error) {
	var snap volumeSnapshot
	if err := p.read(ctx, &snap, "namespaces", claim.Namespace, "volumesnapshots", name); err != nil {
		return "", fmt.Errorf("error getting snapshot %s from api server: %w", name, err)
	}
	switch {
	case snap.DeletionTimestamp != nil:
		return "", fmt.Errorf("snapshot %s is being deleted", name)
	case snap.Status.Content == "":
		return "", fmt.Errorf("snapshot %s not bound", name)
	}
	var c content
	if err := p.read(ctx, &c, "volumesnapshotcontents", snap.Status.Content); err != nil {
		return "", fmt.Errorf("error getting snapshotcontent %s for snapshot %s: %w", snap.Status.Content,
			name, err)
	}
	wanted := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	switch of := c.Spec.Snapshot; {
	case of.UID != snap.UID || of.Namespace != snap.Namespace || of.Name != snap.Name:
		return "", fmt.Errorf("snapshotcontent %s for snapshot %s is bound to a different snapshot", c.Name, name)
	case c.Spec.Driver != locality.Driver:
		return "", fmt.Errorf("%w: snapshotcontent %s for snapshot %s is not handled by CSI driver of StorageClass %s: by %s",
			errImpossible, c.Name, name, storagehelper.GetPersistentVolumeClaimClass(claim), c.Spec.Driver)
	case !snap.Status.Ready:
		return "", fmt.Errorf("snapshot %s is not Ready", name)
	case c.Status.Handle == "":
		return "", fmt.Errorf("snapshot handle %s is not available", name)
	case snap.Status.RestoreSize != nil && wanted.Cmp(*snap.Status.RestoreSize) < 0:
		return "", fmt.Errorf("%w: requested volume size %d is less than the size %d for the source snapshot %s",
			errImpossible, wanted.Value(), snap.Status.RestoreSize.Value(), name)
	case c.Labels[managedBy] != "" && c.Labels[managedBy] != p.Node:
		return "", fmt.Errorf("%w: snapshot %s is on node %s: have the claim's pod run there", errNoSourceHere, name,
			c.Labels[managedBy])
	}
	// It may be allowed later.
	if m := c.Spec.SourceMode; m != nil && mode(m) != mode(claim.Spec.VolumeMode) {
		if may, err := strconv.ParseBool(c.Annotations[modeMayChange]); err != nil || !may {
			return "", fmt.Errorf("requested volume %s/%s modifies the mode of the source volume but does not have"+
				" permission to do so: snapshotcontent %s has no annotation %s: \"true\"",
				claim.Namespace, claim.Name, c.Name, modeMayChange)
		}
	}
	return c.Status.Handle, nil
}

// read reads an object of the API of snapshots.
func (p *Provisioner) read(ctx context.Context, into any, path ...string) error {
	raw, err := p.Read(ctx, snapshots, path...)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}
