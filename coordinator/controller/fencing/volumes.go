package fencing

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/shoal-project/shoal/agent/fence"
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

// attachment is a volume that a driver attached to a node; many: other nodes may have it
// at the same time, and nobody promised that this is safe.
type attachment struct {
	name, volume string
	many         bool
}

// writesEnd on a PersistentVolume, or on a pod for its volumes without one, is somebody's
// word that nothing reaches the storage any more of what the pod's processes wrote, once
// they have ended and another node may write.
const writesEnd = "shoal.io/writes-end-with-pod"

// of lists what has to be detached from a pod's node before another has its volumes. why
// is not empty when a volume could still be written there after the pod has ended.
// Pods that may run twice may write files twice.
func (v volumes) of(p *corev1.Pod) (list []attachment, why string, err error) {
	twice := fence.PolicyOf(p) == fence.StopIfReplaced
	for i := range p.Spec.Volumes {
		s := &p.Spec.Volumes[i]
		pv, err := v.volume(p, s)
		if err != nil {
			return nil, "", err
		}
		if pv == nil {
			mayMove := ownOfPod(&s.VolumeSource) || twice && filesOfPod(&s.VolumeSource)
			if !mayMove && p.Annotations[writesEnd] != "true" {
				return nil, writesByItself(s.Name, "the pod names it without a claim"), nil
			}
			continue
		}
		a, what, err := v.judge(pv, p.Spec.NodeName)
		if err != nil {
			return nil, "", err
		}
		if twice && files(&pv.Spec.PersistentVolumeSource) {
			what = ""
		}
		promised := pv.Annotations[writesEnd] == "true"
		if what != "" && !promised {
			return nil, writesByItself(s.Name, what), nil
		}
		if a != nil {
			a.many = a.many && !promised
			list = append(list, *a)
		}
	}
	return list, "", nil
}

func writesByItself(name, what string) string {
	return fmt.Sprintf("what it wrote to volume %q may reach the storage later (%s), and nobody can take that "+
		"from its node; give the node the taint node.kubernetes.io/out-of-service once it is off", name, what)
}

// sharedDevice tells whether pods write to a volume past all file systems, while other
// nodes have it attached too: the end of a pod does not write what is in memory of it.
func sharedDevice(pv *corev1.PersistentVolume) bool {
	return pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock && forMany(pv)
}

func forMany(pv *corev1.PersistentVolume) bool {
	return slices.Contains(pv.Spec.AccessModes, corev1.ReadWriteMany)
}

// kept names a volume that another node may attach although this one keeps it for others.
func (v volumes) kept(list []attachment, others []*corev1.Pod) (why string, err error) {
	for _, a := range list {
		if !a.many {
			continue
		}
		if used, err := v.used(a.volume, others); used || err != nil {
			return "another pod of its node uses " + a.volume + " too, so that it is not detached", err
		}
	}
	return "", nil
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
// processes; what is not empty when by neither. Without an attachment the latter is not
// enough, even for files: the kernel of a node whose whole network was cut holds what it
// could not write, and writes it when the network is back.
func (v volumes) judge(pv *corev1.PersistentVolume, node string) (a *attachment, what string, err error) {
	if driven, err := migration.Volume(pv); err == nil {
		pv = driven
	}
	s := &pv.Spec.PersistentVolumeSource
	switch {
	case s.CephFS != nil:
		return nil, "", nil // its servers have a client give up a file before another may write it
	case s.CSI == nil:
		return nil, "nobody attaches it", nil
	}
	driver, err := v.drivers.Get(s.CSI.Driver)
	if err == nil && !attaches(driver) {
		return nil, "driver " + s.CSI.Driver + " attaches nothing", nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, "", err
	}
	if sharedDevice(pv) {
		what = "a device that other nodes may have too"
	}
	sum := sha256.Sum256([]byte(s.CSI.VolumeHandle + s.CSI.Driver + node))
	return &attachment{"csi-" + hex.EncodeToString(sum[:]), pv.Name, forMany(pv)}, what, nil
}

func attaches(d *storagev1.CSIDriver) bool {
	return d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

// ownOfPod tells whether a volume is a pod's own: no other pod ever has what is in it.
func ownOfPod(s *corev1.VolumeSource) bool {
	return s.EmptyDir != nil || s.ConfigMap != nil || s.Secret != nil || s.DownwardAPI != nil || s.Projected != nil ||
		s.Image != nil
}

// filesOfPod tells whether a volume is a file system that several nodes may have at once,
// files that of a volume with a claim.
func filesOfPod(s *corev1.VolumeSource) bool {
	return s.NFS != nil || s.CephFS != nil || s.HostPath != nil || s.AzureFile != nil || s.Glusterfs != nil
}

func files(s *corev1.PersistentVolumeSource) bool {
	return s.NFS != nil || s.CephFS != nil || s.HostPath != nil || s.Local != nil || s.AzureFile != nil ||
		s.Glusterfs != nil
}

// detach takes attachments from a node, but for those that other pods there use.
func (v volumes) detach(ctx context.Context, list []attachment, others []*corev1.Pod) error {
	var errs []error
	for _, a := range list {
		if used, err := v.used(a.volume, others); used || err != nil {
			errs = append(errs, err)
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

// used is an error where it is not known whether a pod uses the volume.
func (v volumes) used(volume string, pods []*corev1.Pod) (bool, error) {
	var errs []error
	for _, p := range pods {
		for i := range p.Spec.Volumes {
			pv, err := v.volume(p, &p.Spec.Volumes[i])
			if err == nil && pv != nil && pv.Name == volume {
				return true, nil
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("volumes of pod %s/%s: %w", p.Namespace, p.Name, err))
			}
		}
	}
	return false, errors.Join(errs...)
}
