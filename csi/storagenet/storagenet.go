// Package storagenet names disks of storage networks, iscsi and fc, as Nodes list them
// in status.volumesAttached and status.volumesInUse. No driver attaches such a disk: that
// it is listed at one Node alone is what keeps a second node from mounting it.
package storagenet

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	iscsiPrefix = "kubernetes.io/iscsi/"
	fcPrefix    = "kubernetes.io/fc/"
)

// Name is that of the disk of a volume, upstream's, which is the same for volumes that
// write the same disk alike; "" for what is no such disk.
func Name(pv *corev1.PersistentVolume) corev1.UniqueVolumeName {
	name := ""
	switch {
	case pv == nil:
	case pv.Spec.ISCSI != nil:
		i := pv.Spec.ISCSI
		name = fmt.Sprintf("%s%s:%s:%d", iscsiPrefix, i.TargetPortal, i.IQN, i.Lun)
	case pv.Spec.FC != nil && len(pv.Spec.FC.TargetWWNs) > 0 && pv.Spec.FC.Lun != nil:
		name = fmt.Sprintf("%s%v:%d", fcPrefix, pv.Spec.FC.TargetWWNs, *pv.Spec.FC.Lun)
	case pv.Spec.FC != nil && len(pv.Spec.FC.WWIDs) > 0:
		name = fmt.Sprintf("%s%v", fcPrefix, pv.Spec.FC.WWIDs)
	}
	return corev1.UniqueVolumeName(name)
}

// Is tells whether a name in a Node's status is that of such a disk.
func Is(name corev1.UniqueVolumeName) bool {
	return strings.HasPrefix(string(name), iscsiPrefix) || strings.HasPrefix(string(name), fcPrefix)
}
