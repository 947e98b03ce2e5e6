package persistentvolume

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagehelper "k8s.io/component-helpers/storage/volume"

	"github.com/shoal-project/shoal/csi/migration"
)

// Finalizers by which a volume stays until what it stands for is deleted: by a plugin
// of Kubernetes itself, or by CSI's provisioner.
const (
	pluginFinalizer = "kubernetes.io/pv-controller"
	driverFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"
)

// migrated is the volume with the annotation that tells which driver has taken over the
// plugin that made it, and with the finalizers that fit (PV-24, PV-27); the same object
// where all is well.
func migrated(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	by := pv.Annotations[storagehelper.AnnDynamicallyProvisioned]
	if by == "" {
		return pv
	}
	out, driver := pv.DeepCopy(), migration.Driver(by)
	changed := setMigratedTo(out.Annotations, driver)
	has := func(finalizer string, wanted bool) {
		i := slices.Index(out.Finalizers, finalizer)
		switch {
		case wanted && i < 0:
			out.Finalizers, changed = append(out.Finalizers, finalizer), true
		case !wanted && i >= 0:
			out.Finalizers, changed = slices.Delete(out.Finalizers, i, i+1), true
		}
	}
	switch {
	case driver != "":
		has(pluginFinalizer, false)
	case strings.HasPrefix(by, "kubernetes.io/"):
		has(pluginFinalizer, pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete)
		has(driverFinalizer, false)
	}
	if !changed {
		return pv
	}
	return out
}

// setMigratedTo tells in annotations that a driver has taken over, "" that none has.
func setMigratedTo(annotations map[string]string, driver string) (changed bool) {
	if annotations[storagehelper.AnnMigratedTo] == driver {
		return false
	}
	annotations[storagehelper.AnnMigratedTo] = driver
	if driver == "" {
		delete(annotations, storagehelper.AnnMigratedTo)
	}
	return true
}

// migratedClaim is the same for a claim whose volume was asked for.
func migratedClaim(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	asked, ok := c.Annotations[storagehelper.AnnStorageProvisioner]
	if !ok {
		asked = c.Annotations[storagehelper.AnnBetaStorageProvisioner]
	}
	if asked == "" {
		return c
	}
	out := c.DeepCopy()
	if !setMigratedTo(out.Annotations, migration.Driver(asked)) {
		return c
	}
	return out
}

// volumeStep is what is to be done about a volume.
type volumeStep struct {
	// Phase is its phase with the message; "" leaves both.
	Phase   corev1.PersistentVolumePhase
	Message string
	// Unbind takes the claim away from it.
	Unbind bool
	// Recycle has it emptied.
	Recycle bool
	// Claim has its claim looked at.
	Claim bool
	// Event is told of the volume, ClaimEvent of its claim.
	Event, ClaimEvent *event
}

// planVolume decides about a volume; claim is the one that it is bound to, nil
// when that is gone.
func planVolume(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) volumeStep {
	ref := pv.Spec.ClaimRef
	switch {
	case ref == nil:
		return volumeStep{Phase: corev1.VolumeAvailable}
	case ref.UID == "":
		return volumeStep{Phase: corev1.VolumeAvailable, Claim: true}
	case claim == nil:
		return planReleased(pv)
	case claim.Spec.VolumeName == pv.Name:
		return volumeStep{Phase: corev1.VolumeBound}
	case claim.Spec.VolumeName != "":
		if provisioned(pv) && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
			return planReleased(pv)
		}
		return volumeStep{Unbind: true}
	case storagehelper.CheckVolumeModeMismatches(&claim.Spec, &pv.Spec):
		return volumeStep{
			Event: warning("VolumeMismatch",
				"Cannot bind PersistentVolume to requested PersistentVolumeClaim %q due to incompatible volumeMode.",
				claim.Name),
			ClaimEvent: warning("VolumeMismatch",
				"Cannot bind PersistentVolume %q to requested PersistentVolumeClaim due to incompatible volumeMode.",
				pv.Name),
		}
	}
	return volumeStep{Claim: true}
}

func provisioned(pv *corev1.PersistentVolume) bool {
	return metav1.HasAnnotation(pv.ObjectMeta, storagehelper.AnnDynamicallyProvisioned)
}

// planReleased: the volume's claim is gone. Drivers delete what they made; nothing
// else here can delete a volume.
func planReleased(pv *corev1.PersistentVolume) volumeStep {
	step := volumeStep{}
	if pv.Status.Phase != corev1.VolumeReleased && pv.Status.Phase != corev1.VolumeFailed {
		step.Phase = corev1.VolumeReleased
	}
	fail := func(reason, message string) volumeStep {
		if pv.Status.Phase == corev1.VolumeFailed {
			return step // told before
		}
		return volumeStep{Phase: corev1.VolumeFailed, Message: message, Event: warning(reason, "%s", message)}
	}
	switch pv.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimRetain:
	case corev1.PersistentVolumeReclaimDelete:
		if !deletedByOthers(pv) {
			return fail("VolumeFailedDelete",
				fmt.Sprintf("error getting deleter volume plugin for volume %q: no deletable volume plugin matched",
					pv.Name))
		}
	case corev1.PersistentVolumeReclaimRecycle:
		if recyclable(pv) != nil {
			step.Recycle = pv.DeletionTimestamp == nil
			return step
		}
		return fail("VolumeFailedRecycle", "No recycler plugin found for the volume!")
	default:
		return fail("VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")
	}
	return step
}

// deletedByOthers tells whether a driver outside is to delete the volume.
func deletedByOthers(pv *corev1.PersistentVolume) bool {
	by := pv.Annotations[storagehelper.AnnDynamicallyProvisioned]
	return by != "" && !strings.HasPrefix(by, "kubernetes.io/") || pv.Spec.CSI != nil ||
		metav1.HasAnnotation(pv.ObjectMeta, storagehelper.AnnMigratedTo)
}

// unbound is the volume without its claim. One that a user reserved stays
// reserved.
func unbound(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	pv = pv.DeepCopy()
	if metav1.HasAnnotation(pv.ObjectMeta, storagehelper.AnnBoundByController) {
		pv.Spec.ClaimRef = nil
		delete(pv.Annotations, storagehelper.AnnBoundByController)
	} else {
		pv.Spec.ClaimRef.UID = ""
	}
	return pv
}
