package provision

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/csi"
)

// volume does what a volume of this node needs when it is not used any more. The
// finalizer is for what is to be deleted here: it comes and goes with the policy.
func (p *Provisioner) volume(ctx context.Context, pv *corev1.PersistentVolume) error {
	protected, ends := slices.Contains(pv.Finalizers, finalizer), pv.DeletionTimestamp != nil
	switch {
	case pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		if protected {
			return p.release(ctx, pv) // the data stays
		}
		return nil
	case !protected && ends:
		return nil // it is deleted already
	case !protected && pv.Status.Phase == corev1.VolumeBound:
		return p.patchVolume(ctx, pv, map[string]any{"metadata": map[string]any{
			"uid": pv.UID, "finalizers": []string{finalizer},
		}})
	case pv.Status.Phase != corev1.VolumeReleased:
		return nil
	}
	defer p.changed()
	if err := p.Driver.Delete(ctx, pv.Spec.CSI.VolumeHandle); err != nil {
		p.tell(volumeRef(pv), corev1.EventTypeWarning, "VolumeFailedDelete", "%v", err)
		return fmt.Errorf("delete volume %s: %w", pv.Name, err)
	}
	// The finalizer goes last: with it, an agent that is killed here goes on.
	err := p.Client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pv.UID},
	})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // another of the name is another volume
	case err != nil:
		return fmt.Errorf("delete volume %s: %w", pv.Name, err)
	}
	if err := p.release(ctx, pv); err != nil {
		return err
	}
	p.deleted.Store(pv.Name, pv.UID)
	return nil
}

// release takes the finalizer off, whatever others do with theirs meanwhile.
func (p *Provisioner) release(ctx context.Context, pv *corev1.PersistentVolume) error {
	return p.patchVolume(ctx, pv, map[string]any{"metadata": map[string]any{
		"uid": pv.UID, "$deleteFromPrimitiveList/finalizers": []string{finalizer},
	}})
}

func (p *Provisioner) patchVolume(ctx context.Context, pv *corev1.PersistentVolume, change any) error {
	patch, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = p.Client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("change volume %s: %w", pv.Name, err)
	}
	return nil
}

// grow makes a claim's volume larger, where the claim asks for it. What is on the
// volume grows where it is mounted: the claim's status says so until then.
func (p *Provisioner) grow(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	pv, ok := p.volumes.get(key{name: claim.Spec.VolumeName}).(*corev1.PersistentVolume)
	wanted := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	has := claim.Status.Capacity[corev1.ResourceStorage]
	if !ok || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID || claim.Status.Phase != corev1.ClaimBound ||
		wanted.Cmp(has) <= 0 {
		return nil
	}
	// What the watch shows may be a step of this expansion that is over.
	claim, err := p.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	if err != nil || claim.UID != pv.Spec.ClaimRef.UID || pending(claim) {
		return unlessGone(err)
	}
	if err := p.status(ctx, claim, inProgress(claim, wanted)); err != nil {
		return err
	}
	p.tell(claimRef(claim), corev1.EventTypeNormal, "Resizing", "External resizer is resizing volume %s", pv.Name)
	mode := corev1.ReadWriteOnce
	if len(pv.Spec.AccessModes) > 0 {
		mode = pv.Spec.AccessModes[0]
	}
	defer p.changed()
	now, onNode, err := p.Driver.Grow(ctx, pv.Spec.CSI.VolumeHandle, wanted.Value(),
		use(mode, pv.Spec.VolumeMode, pv.Spec.CSI.FSType, pv.Spec.MountOptions))
	if err != nil {
		p.tell(claimRef(claim), corev1.EventTypeWarning, "VolumeResizeFailed", "resize volume %q by resizer %q failed: %v",
			pv.Name, pv.Spec.CSI.Driver, err)
		if csi.Infeasible(err) || csi.Full(err) {
			err = p.status(ctx, claim, infeasible(claim, err))
		}
		return err
	}
	size := quantity(max(now, wanted.Value()))
	if err := p.patchVolume(ctx, pv, map[string]any{"spec": map[string]any{
		"capacity": map[string]any{"storage": size.String()},
	}}); err != nil {
		return err
	}
	if onNode {
		err = p.status(ctx, claim, onTheNode(claim, wanted))
	} else {
		p.tell(claimRef(claim), corev1.EventTypeNormal, "VolumeResizeSuccessful", "Resize volume succeeded")
		err = p.status(ctx, claim, resized(claim, size))
	}
	return err
}

func unlessGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// pending tells whether the size that a claim asks for is the node's to make use of
// already, or was found to be impossible.
func pending(c *corev1.PersistentVolumeClaim) bool {
	asked := c.Spec.Resources.Requests[corev1.ResourceStorage]
	tried := c.Status.AllocatedResources[corev1.ResourceStorage]
	if asked.Cmp(tried) != 0 {
		return false
	}
	switch c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress,
		corev1.PersistentVolumeClaimNodeResizeInfeasible, corev1.PersistentVolumeClaimControllerResizeInfeasible:
		return true
	}
	return false
}

// status writes a claim's status.
func (p *Provisioner) status(ctx context.Context, claim *corev1.PersistentVolumeClaim,
	status corev1.PersistentVolumeClaimStatus) error {
	claims := p.Client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	now := claim.DeepCopy()
	now.Status = status
	written, err := claims.UpdateStatus(ctx, now, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("tell in claim %s/%s of its expansion: %w", claim.Namespace, claim.Name, err)
	}
	claim.ResourceVersion, claim.Status = written.ResourceVersion, written.Status
	return nil
}

func inProgress(c *corev1.PersistentVolumeClaim, size resource.Quantity) corev1.PersistentVolumeClaimStatus {
	return expanding(c, size, corev1.PersistentVolumeClaimControllerResizeInProgress,
		corev1.PersistentVolumeClaimResizing, "")
}

func infeasible(c *corev1.PersistentVolumeClaim, err error) corev1.PersistentVolumeClaimStatus {
	return expanding(c, c.Spec.Resources.Requests[corev1.ResourceStorage],
		corev1.PersistentVolumeClaimControllerResizeInfeasible, corev1.PersistentVolumeClaimControllerResizeError,
		err.Error())
}

func onTheNode(c *corev1.PersistentVolumeClaim, size resource.Quantity) corev1.PersistentVolumeClaimStatus {
	return expanding(c, size, corev1.PersistentVolumeClaimNodeResizePending,
		corev1.PersistentVolumeClaimFileSystemResizePending,
		"Waiting for user to (re-)start a pod to finish file system resize of volume on node.")
}

// expanding is a status with one condition of those that tell of an expansion.
func expanding(c *corev1.PersistentVolumeClaim, size resource.Quantity, state corev1.ClaimResourceStatus,
	condition corev1.PersistentVolumeClaimConditionType, message string) corev1.PersistentVolumeClaimStatus {
	s := c.Status.DeepCopy()
	s.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: size}
	s.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: state}
	s.Conditions = append(without(s.Conditions), corev1.PersistentVolumeClaimCondition{
		Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(), Message: message,
	})
	return *s
}

func resized(c *corev1.PersistentVolumeClaim, size resource.Quantity) corev1.PersistentVolumeClaimStatus {
	s := c.Status.DeepCopy()
	s.Capacity = corev1.ResourceList{corev1.ResourceStorage: size}
	s.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: size}
	s.AllocatedResourceStatuses, s.Conditions = nil, without(s.Conditions)
	return *s
}

// without leaves out the conditions that tell of an expansion.
func without(list []corev1.PersistentVolumeClaimCondition) []corev1.PersistentVolumeClaimCondition {
	return slices.DeleteFunc(slices.Clone(list), func(c corev1.PersistentVolumeClaimCondition) bool {
		switch c.Type {
		case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			return true
		}
		return false
	})
}
