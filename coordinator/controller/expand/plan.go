package expand

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations that resizers know.
const (
	resizerKey   = "volume.kubernetes.io/storage-resizer"
	preResizeKey = "volume.alpha.kubernetes.io/pre-resize-capacity"
)

// reason is that of all events.
const reason = "ExternalExpanding"

// step is what is to be done about a claim.
type step struct {
	// Resizer is written to the claim; "" writes nothing.
	Resizer string
	// Type and Message are those of the event; "" stands for none.
	Type, Message string
}

// plan decides about a bound claim and the volume that it names.
func plan(c *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) step {
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.Namespace != c.Namespace || ref.UID != c.UID {
		return step{}
	}
	want, have := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
	if want.Cmp(have) <= 0 && !metav1.HasAnnotation(pv.ObjectMeta, preResizeKey) {
		return step{}
	}
	if plugin, driver := migrated(&pv.Spec.PersistentVolumeSource); plugin != "" {
		return step{Resizer: driver, Type: corev1.EventTypeNormal,
			Message: "CSI migration enabled for " + plugin + "; waiting for external resizer to expand the pvc"}
	}
	s := step{Type: corev1.EventTypeNormal, Message: "waiting for an external controller to expand this PVC"}
	if pv.Spec.CSI == nil && pv.Spec.FlexVolume == nil {
		s.Type = corev1.EventTypeWarning // nobody is known who could
	}
	return s
}

// migrated is the plugin of a cloud's volume and the driver that has taken it over,
// "" for another volume.
func migrated(s *corev1.PersistentVolumeSource) (plugin, driver string) {
	switch {
	case s.AWSElasticBlockStore != nil:
		return "kubernetes.io/aws-ebs", "ebs.csi.aws.com"
	case s.GCEPersistentDisk != nil:
		return "kubernetes.io/gce-pd", "pd.csi.storage.gke.io"
	case s.Cinder != nil:
		return "kubernetes.io/cinder", "cinder.csi.openstack.org"
	case s.AzureDisk != nil:
		return "kubernetes.io/azure-disk", "disk.csi.azure.com"
	case s.AzureFile != nil:
		return "kubernetes.io/azure-file", "file.csi.azure.com"
	case s.VsphereVolume != nil:
		return "kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"
	case s.PortworxVolume != nil:
		return "kubernetes.io/portworx-volume", "pxd.portworx.com"
	}
	return "", ""
}
