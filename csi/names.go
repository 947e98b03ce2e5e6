package csi

import (
	"crypto/sha256"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Plugin is what Kubernetes calls all of CSI among its kinds of volumes.
const Plugin = "kubernetes.io/csi"

// AttachmentName names the VolumeAttachment of a volume and a node.
func AttachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// EphemeralHandle is the handle of a volume that a pod has inline.
func EphemeralHandle(podUID, volume string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(podUID+volume)))
}

// HandleDir is the directory of a volume's handle, whatever is in it.
func HandleDir(handle string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(handle))) }

// VolumeName names an attachable volume in a Node's status.
func VolumeName(driver, handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(Plugin + "/" + driver + "^" + handle)
}
