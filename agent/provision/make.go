package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storagehelper "k8s.io/component-helpers/storage/volume"

	"github.com/shoal-project/shoal/csi"
	"github.com/shoal-project/shoal/csi/locality"
)

// finalizer keeps the API's volume until the driver's is gone; by this name CSI's
// own provisioner, and those who look for it, know it.
const finalizer = "external-provisioner.volume.kubernetes.io/finalizer"

// ours is the prefix of a class's parameters that are not for the driver.
const ours = "csi.storage.k8s.io/"

// make makes the volume of a claim.
func (p *Provisioner) make(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	name := volumeName(claim)
	if p.volumes.get(key{name: name}) != nil || p.journal.wasTold(name) {
		return nil // it will be bound
	}
	if !p.volumes.complete.Load() {
		return nil // it may be there; the claim is looked at again
	}
	class, err := p.Client.StorageV1().StorageClasses().Get(ctx, storagehelper.GetPersistentVolumeClaimClass(claim),
		metav1.GetOptions{})
	if err != nil {
		return p.failed(claim, storagehelper.GetPersistentVolumeClaimClass(claim), err)
	}
	call, err := request(claim, class, p.Node)
	if err != nil {
		_ = p.failed(claim, class.Name, err) // the claim has to change
		return nil
	}
	call.Source, err = p.source(ctx, claim)
	switch {
	case errors.Is(err, errPopulator):
		p.tell(claimRef(claim), corev1.EventTypeNormal, "Provisioning",
			"Assuming an external populator will provision the volume")
		return nil
	case errors.Is(err, errImpossible):
		_ = p.failed(claim, class.Name, err)
		return nil
	case errors.Is(err, errNoSourceHere):
		_ = p.failed(claim, class.Name, err)
		return p.giveBack(ctx, claim)
	case err != nil:
		return p.failed(claim, class.Name, err)
	}
	p.tell(claimRef(claim), corev1.EventTypeNormal, "Provisioning",
		"External provisioner is provisioning volume for claim %q", claim.Namespace+"/"+claim.Name)
	defer p.changed()
	if err := p.journal.begin(name, claim); err != nil {
		return p.failed(claim, class.Name, err)
	}
	made, err := p.Driver.Create(ctx, call)
	if csi.Full(err) {
		_ = p.failed(claim, class.Name, err)
		if err := p.full(ctx, class); err != nil {
			return err // else the scheduler would choose this node again
		}
		return p.giveBack(ctx, claim)
	}
	if status.Code(err) == codes.NotFound && call.Source.Snapshot != "" {
		// Nothing in the API told which node has it.
		_ = p.failed(claim, class.Name, fmt.Errorf("%w: %w: have the claim's pod run on the node of the snapshot's source",
			errNoSourceHere, err))
		return p.giveBack(ctx, claim)
	}
	if err != nil {
		return p.failed(claim, class.Name, err)
	}
	if err := p.tellOf(ctx, claim, newVolume(claim, class, call, made, p.Node)); err != nil {
		return p.failed(claim, class.Name, err)
	}
	p.tell(claimRef(claim), corev1.EventTypeNormal, "ProvisioningSucceeded", "Successfully provisioned volume %s", name)
	return nil
}

// tellOf records a volume that was made, and tells the API of it.
func (p *Provisioner) tellOf(ctx context.Context, claim *corev1.PersistentVolumeClaim,
	pv *corev1.PersistentVolume) error {
	u := &Unfinished{Namespace: claim.Namespace, Claim: claim.Name, UID: claim.UID, Volume: pv}
	if err := p.journal.put(pv.Name, u); err != nil {
		return err
	}
	return p.announce(ctx, pv)
}

func volumeName(claim *corev1.PersistentVolumeClaim) string { return locality.VolumeName(claim.UID) }

func (p *Provisioner) failed(claim *corev1.PersistentVolumeClaim, class string, err error) error {
	err = fmt.Errorf("failed to provision volume with StorageClass %q: %w", class, err)
	p.tell(claimRef(claim), corev1.EventTypeWarning, "ProvisioningFailed", "%v", err)
	return err
}

// giveBack has the scheduler look for another node.
func (p *Provisioner) giveBack(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": claim.ResourceVersion,
		"annotations":     map[string]any{storagehelper.AnnSelectedNode: nil},
	}})
	if err != nil {
		return err
	}
	claims := p.Client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	_, err = claims.Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("give the claim back to the scheduler: %w", err)
	}
	return nil
}

// request is the call that makes a claim's volume, or why none can.
func request(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node string) (csi.Create, error) {
	switch {
	case class.Provisioner != locality.Driver:
		return csi.Create{}, fmt.Errorf("provisioner of the class is %s, not %s", class.Provisioner, locality.Driver)
	case claim.Spec.Selector != nil:
		return csi.Create{}, fmt.Errorf("claim Selector is not supported")
	}
	call := csi.Create{
		Name:       locality.VolumeName(claim.UID),
		Bytes:      claim.Spec.Resources.Requests.Storage().Value(),
		Parameters: driverParameters(class),
		Topology:   map[string]string{locality.NodeKey: node},
	}
	for _, mode := range claim.Spec.AccessModes {
		call.Use = append(call.Use, use(mode, claim.Spec.VolumeMode, class.Parameters[ours+"fstype"], class.MountOptions))
	}
	return call, nil
}

// driverParameters are those of a class that are for the driver.
func driverParameters(class *storagev1.StorageClass) map[string]string {
	out := map[string]string{}
	maps.Copy(out, class.Parameters)
	maps.DeleteFunc(out, func(name, _ string) bool { return strings.HasPrefix(name, ours) })
	return out
}

func use(access corev1.PersistentVolumeAccessMode, mode *corev1.PersistentVolumeMode, fsType string,
	flags []string) csi.Use {
	if mode != nil && *mode == corev1.PersistentVolumeBlock {
		return csi.Use{Access: access, Block: true}
	}
	return csi.Use{Access: access, FSType: fsType, Flags: flags}
}

// newVolume is what the API says of a volume that was made.
func newVolume(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, call csi.Create, made csi.Created,
	node string) *corev1.PersistentVolume {
	ref, size := claimRef(claim), quantity(max(made.Bytes, call.Bytes))
	reclaim := corev1.PersistentVolumeReclaimDelete
	if class.ReclaimPolicy != nil {
		reclaim = *class.ReclaimPolicy
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        call.Name,
			Labels:      map[string]string{locality.NodeKey: node},
			Annotations: map[string]string{storagehelper.AnnDynamicallyProvisioned: locality.Driver},
			Finalizers:  []string{finalizer},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: size},
			AccessModes:                   claim.Spec.AccessModes,
			ClaimRef:                      ref,
			PersistentVolumeReclaimPolicy: reclaim,
			StorageClassName:              class.Name,
			VolumeMode:                    claim.Spec.VolumeMode,
			NodeAffinity:                  locality.Affinity(node),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver:           locality.Driver,
				VolumeHandle:     made.Handle,
				VolumeAttributes: made.Attributes,
			}},
		},
	}
	if len(call.Use) > 0 && !call.Use[0].Block {
		pv.Spec.MountOptions, pv.Spec.CSI.FSType = call.Use[0].Flags, call.Use[0].FSType
	}
	return pv
}

func quantity(bytes int64) resource.Quantity { return *resource.NewQuantity(bytes, resource.BinarySI) }
