package volume

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/shoal-project/shoal/csi"
)

// growthEach is how often the claim of a volume is looked at that the node can expand:
// nodes may not watch claims.
const growthEach = time.Minute

// stepGrow is the expansion of a volume.
const stepGrow = "NodeExpandVolume"

// grower is implemented by drivers, other than storage drivers, whose volumes can grow.
type grower interface {
	// Grow makes use of what the volume has become. It is called while it is mounted, and
	// again after a failure; nothing to do is no error.
	Grow(ctx context.Context, v *Volume) error
}

// expander brings a volume to a size.
type expander func(ctx context.Context, size resource.Quantity) error

// grow makes use of a volume's new size, once its claim waits for the node. What it
// returns is when to look again, zero for never.
func (m *Manager) grow(ctx context.Context, p *corev1.Pod, v *Volume) (again time.Time, err error) {
	if v.Persistent == nil || v.Persistent.Spec.ClaimRef == nil {
		return time.Time{}, nil
	}
	if !v.ofStorageDriver() {
		return m.growInTree(ctx, p, v)
	}
	if csiOf(v.Source).readOnly {
		return time.Time{}, nil
	}
	now := time.Now()
	if now.Before(v.CSI.looked.Add(growthEach)) {
		return v.CSI.looked.Add(growthEach), nil
	}
	client, err := m.storageDrivers().Client(csiOf(v.Source).driver)
	if err != nil {
		return now.Add(growthEach), nil // it is told where the volume is mounted
	}
	can, err := client.Capabilities(ctx)
	if err != nil || !can.Expands {
		return time.Time{}, nil
	}
	v.CSI.looked = now
	return m.growTo(ctx, p, v, func(ctx context.Context, size resource.Quantity) error {
		call, err := m.expansion(ctx, v, can, size)
		if err != nil {
			return err
		}
		return client.Expand(ctx, call)
	})
}

// growInTree is grow for volumes that no storage driver makes. Nobody but an
// administrator makes these larger, and says so in the PersistentVolume.
func (m *Manager) growInTree(ctx context.Context, p *corev1.Pod, v *Volume) (again time.Time, err error) {
	d, err := made(m.table(), v)
	if err != nil {
		return time.Time{}, err
	}
	g, can := d.driver.(grower)
	if !can || m.Storage == nil || v.Disk != nil && v.Disk.ReadOnly ||
		v.Volume.PersistentVolumeClaim != nil && v.Volume.PersistentVolumeClaim.ReadOnly {
		return time.Time{}, nil
	}
	if now := time.Now(); now.Before(v.looked.Add(growthEach)) {
		return v.looked.Add(growthEach), nil
	}
	v.looked = time.Now()
	return m.growTo(ctx, p, v, func(ctx context.Context, _ resource.Quantity) error { return g.Grow(ctx, v) })
}

// growTo has a volume brought to the size for which its claim waits.
func (m *Manager) growTo(ctx context.Context, p *corev1.Pod, v *Volume, do expander) (again time.Time, err error) {
	again = time.Now().Add(growthEach)
	ref := v.Persistent.Spec.ClaimRef
	claim, err := m.Storage.Claim(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return again, nil // the API may be away: the volume is as it was
	}
	if !waitsForNode(claim) {
		return v.grown(again, m.catchUp(ctx, p, v, do, claim))
	}
	pv, err := m.Claims.Volume(ctx, p, &v.Volume)
	if err != nil {
		return again, nil
	}
	size, allowed := sizeOnNode(claim, pv)
	if !allowed {
		return again, nil
	}
	return v.grown(again, m.expand(ctx, p, v, do, claim, size))
}

// grown is when to look again after an expansion: never, where the driver does not
// expand what is in use. The next mount is offline.
func (v *Volume) grown(again time.Time, err error) (time.Time, error) {
	if csi.InUse(err) {
		return time.Time{}, nil
	}
	if err != nil {
		v.looked = time.Time{} // tried again as soon as what else fails
		if v.CSI != nil {
			v.CSI.looked = time.Time{}
		}
	}
	return again, inStep(stepGrow, err)
}

// noNodeExpansion is the annotation of a claim that no node needs to expand.
const noNodeExpansion = "volume.kubernetes.io/node-expansion-not-required"

// catchUp expands a volume that another node has expanded, and said so: each node
// that mounts a ReadWriteMany volume has to.
func (m *Manager) catchUp(ctx context.Context, p *corev1.Pod, v *Volume, do expander,
	claim *corev1.PersistentVolumeClaim) error {
	if v.CSI == nil || !slices.Contains(v.Persistent.Spec.AccessModes, corev1.ReadWriteMany) {
		return nil
	}
	size := claim.Status.Capacity[corev1.ResourceStorage]
	if old := v.CSI.Size; old != nil && old.Cmp(size) < 0 && !metav1.HasAnnotation(claim.ObjectMeta, noNodeExpansion) {
		if err := m.callExpand(ctx, p, v, do, size); err != nil {
			return err
		}
	}
	return m.setSize(v, size)
}

// setSize records the size in which this node has a volume.
func (m *Manager) setSize(v *Volume, size resource.Quantity) error {
	if v.CSI.Size != nil && v.CSI.Size.Cmp(size) == 0 {
		return nil
	}
	v.CSI.Size = &size
	return m.keep(v)
}

// callExpand has a volume expanded, and the pod's events tell of it.
func (m *Manager) callExpand(ctx context.Context, p *corev1.Pod, v *Volume, do expander, size resource.Quantity) error {
	if err := do(ctx, size); err != nil {
		m.tell(p, corev1.EventTypeWarning, "VolumeResizeFailed",
			"NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", v.Persistent.Name, err)
		return err
	}
	m.tell(p, corev1.EventTypeNormal, "FileSystemResizeSuccessful",
		"MountVolume.NodeExpandVolume succeeded for volume %q %s", v.Persistent.Name, m.NodeName)
	return nil
}

// waitsForNode tells whether a claim's size is not yet what was asked for.
func waitsForNode(c *corev1.PersistentVolumeClaim) bool {
	has, wants := c.Status.Capacity[corev1.ResourceStorage], c.Spec.Resources.Requests[corev1.ResourceStorage]
	return has.Cmp(wants) < 0 || c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] != ""
}

// sizeOnNode is the size that the node shall bring a volume to. A resizer that can
// recover from failures says when it is the node's turn.
func sizeOnNode(c *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) (size resource.Quantity, allowed bool) {
	has := c.Status.Capacity[corev1.ResourceStorage]
	size = pv.Spec.Capacity[corev1.ResourceStorage]
	state := c.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	if state == "" && c.Status.AllocatedResources == nil {
		return size, has.Cmp(size) < 0
	}
	return c.Status.AllocatedResources[corev1.ResourceStorage],
		has.Cmp(size) < 0 && (state == corev1.PersistentVolumeClaimNodeResizePending ||
			state == corev1.PersistentVolumeClaimNodeResizeInProgress)
}

// expand has a volume expanded, and the claim say what came of it.
func (m *Manager) expand(ctx context.Context, p *corev1.Pod, v *Volume, do expander,
	claim *corev1.PersistentVolumeClaim, size resource.Quantity) error {
	recovers := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] != ""
	if recovers {
		var err error
		claim, err = m.setClaim(ctx, claim, func(s *corev1.PersistentVolumeClaimStatus) {
			s.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizeInProgress
		})
		if err != nil {
			return err
		}
	}
	if err := m.callExpand(ctx, p, v, do, size); err != nil {
		if recovers && csi.Final(err) {
			// A claim that asks for less since then is the resizer's again.
			wants := claim.Spec.Resources.Requests[corev1.ResourceStorage]
			given := v.CSI.refused && wants.Cmp(size) != 0
			v.CSI.refused = true
			say := func(s *corev1.PersistentVolumeClaimStatus) { failed(s, err, given || csi.Infeasible(err)) }
			if _, told := m.setClaim(ctx, claim, say); told != nil {
				m.Log.Warn("a claim does not say that its volume was not expanded", "claim",
					claim.Namespace+"/"+claim.Name, "err", told)
			}
		}
		return err
	}
	if v.CSI != nil && slices.Contains(v.Persistent.Spec.AccessModes, corev1.ReadWriteMany) {
		if err := m.setSize(v, size); err != nil {
			return err
		}
	}
	_, err := m.setClaim(ctx, claim, func(s *corev1.PersistentVolumeClaimStatus) { finished(s, size) })
	return err
}

// expansion is the call for it.
func (m *Manager) expansion(ctx context.Context, v *Volume, can csi.Capabilities, size resource.Quantity) (
	csi.Expand, error) {
	d := csiDriver{root: m.RootDir, objects: m.Objects}
	secrets, err := d.secrets(ctx, "NodeExpandSecretRef", v.Persistent.Spec.CSI.NodeExpandSecretRef, "")
	if err != nil {
		return csi.Expand{}, err
	}
	call := csi.Expand{Volume: v.handle(), Path: v.Path, Use: v.use(false), Bytes: size.Value(), Secrets: secrets}
	staging := d.stagingPath(v)
	if v.block() {
		device := csiBlockDriver{d}
		call.Path, call.Use, staging = device.target(v), device.useBlock(v), device.paths(v).staging
	}
	if can.Stages {
		call.StagingPath = staging
	}
	return call, nil
}

// finished is what a claim says of a volume that has its size.
func finished(s *corev1.PersistentVolumeClaimStatus, size resource.Quantity) {
	if s.Capacity == nil {
		s.Capacity = corev1.ResourceList{}
	}
	s.Capacity[corev1.ResourceStorage] = size
	delete(s.AllocatedResourceStatuses, corev1.ResourceStorage)
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		switch c.Type {
		case corev1.PersistentVolumeClaimFileSystemResizePending, corev1.PersistentVolumeClaimResizing,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			return true
		}
		return false
	})
}

// failed is what a claim says of a volume that cannot be brought to its size.
func failed(s *corev1.PersistentVolumeClaimStatus, err error, infeasible bool) {
	if infeasible {
		s.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizeInfeasible
	}
	is := func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimNodeResizeError && c.Status == corev1.ConditionTrue
	}
	if !slices.ContainsFunc(s.Conditions, is) {
		s.Conditions = append(s.Conditions, corev1.PersistentVolumeClaimCondition{
			Type:               corev1.PersistentVolumeClaimNodeResizeError,
			Status:             corev1.ConditionTrue,
			LastTransitionTime: metav1.Now(),
			Message:            fmt.Sprintf("failed to expand pvc with %v", err),
		})
	}
}

// setClaim changes the status of a claim, if it is still as it was read.
func (m *Manager) setClaim(ctx context.Context, old *corev1.PersistentVolumeClaim,
	change func(*corev1.PersistentVolumeClaimStatus)) (*corev1.PersistentVolumeClaim, error) {
	changed := old.DeepCopy()
	change(&changed.Status)
	before := old.DeepCopy()
	before.ResourceVersion = "" // so that the patch names the version
	from, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	to, err := json.Marshal(changed)
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(from, to, corev1.PersistentVolumeClaim{})
	if err != nil {
		return nil, err
	}
	return m.Storage.PatchClaimStatus(ctx, old.Namespace, old.Name, patch)
}

// tell has an event of the pod written.
func (m *Manager) tell(p *corev1.Pod, kind, reason, format string, args ...any) {
	if m.Event != nil {
		m.Event(p, "", kind, reason, fmt.Sprintf(format, args...))
	}
}
