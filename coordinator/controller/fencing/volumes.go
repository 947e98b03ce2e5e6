package fencing

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/csi/migration"
)

// volumes knows what pods have mounted, and whether that ends with their processes.
type volumes struct {
	client  kubernetes.Interface
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	drivers storagelisters.CSIDriverLister
}

// attachment is a volume that a driver attached to a node.
type attachment struct{ name, volume string }

// of lists what has to be detached from a pod's node before another has its volumes. why
// is not empty when a volume could still be written there after the pod has ended.
func (v volumes) of(p *corev1.Pod) (list []attachment, why string, err error) {
	for i := range p.Spec.Volumes {
		s := &p.Spec.Volumes[i]
		pv, err := v.volume(p, s)
		if err != nil {
			return nil, "", err
		}
		if pv == nil {
			if what := byItself(&s.VolumeSource); what != "" {
				return nil, writesByItself(s.Name, what), nil
			}
			continue
		}
		a, what, err := v.judge(pv, p.Spec.NodeName)
		if err != nil {
			return nil, "", err
		}
		if what != "" {
			return nil, writesByItself(s.Name, what), nil
		}
		if a != nil {
			list = append(list, *a)
		}
	}
	return list, "", nil
}

func writesByItself(name, what string) string {
	return fmt.Sprintf("its node writes volume %q by itself (%s), and nobody can take that from it; "+
		"give the node the taint node.kubernetes.io/out-of-service once it is off", name, what)
}

// volume is what a pod's claim is bound to, nil for other volumes.
func (v volumes) volume(p *corev1.Pod, s *corev1.Volume) (*corev1.PersistentVolume, error) {
	name := ""
	switch {
	case s.PersistentVolumeClaim != nil:
		name = s.PersistentVolumeClaim.ClaimName
	case s.Ephemeral != nil:
		name = p.Name + "-" + s.Name
	default:
		return nil, nil
	}
	claim, err := v.claims.PersistentVolumeClaims(p.Namespace).Get(name)
	if err == nil {
		return v.volumes.Get(claim.Spec.VolumeName)
	}
	return nil, err
}

// judge tells how a volume is taken from a node: by its attachment, or by the end of its
// processes; what is not empty when by neither.
func (v volumes) judge(pv *corev1.PersistentVolume, node string) (a *attachment, what string, err error) {
	if driven, err := migration.Volume(pv); err == nil {
		pv = driven
	}
	s := &pv.Spec.PersistentVolumeSource
	switch {
	case s.NFS != nil, s.CephFS != nil, s.HostPath != nil, s.Local != nil, s.AzureFile != nil, s.Glusterfs != nil:
		return nil, "", nil // file systems that others share, or that nobody else has
	case s.CSI == nil:
		return nil, "a device without an attacher", nil
	}
	driver, err := v.drivers.Get(s.CSI.Driver)
	if err == nil && !attaches(driver) {
		return nil, "driver " + s.CSI.Driver + " attaches nothing", nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, "", err
	}
	sum := sha256.Sum256([]byte(s.CSI.VolumeHandle + s.CSI.Driver + node))
	return &attachment{"csi-" + hex.EncodeToString(sum[:]), pv.Name}, "", nil
}

func attaches(d *storagev1.CSIDriver) bool {
	return d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

// byItself names what a node writes by itself for a volume of a pod's own.
func byItself(s *corev1.VolumeSource) string {
	switch {
	case s.ISCSI != nil:
		return "iscsi"
	case s.FC != nil:
		return "fc"
	case s.RBD != nil:
		return "rbd"
	}
	return ""
}

// detach takes attachments from a node, but for those that other pods there use.
func (v volumes) detach(ctx context.Context, list []attachment, others []*corev1.Pod) error {
	var errs []error
	for _, a := range list {
		if v.used(a.volume, others) {
			continue
		}
		va, err := v.client.StorageV1().VolumeAttachments().Get(ctx, a.name, metav1.GetOptions{})
		if err == nil {
			err = v.client.StorageV1().VolumeAttachments().Delete(ctx, a.name,
				metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(va.UID))})
		}
		errs = append(errs, controller.IgnoreGone(err))
	}
	return errors.Join(errs...)
}

func (v volumes) used(volume string, pods []*corev1.Pod) bool {
	for _, p := range pods {
		for i := range p.Spec.Volumes {
			if pv, err := v.volume(p, &p.Spec.Volumes[i]); err == nil && pv != nil && pv.Name == volume {
				return true
			}
		}
	}
	return false
}
