package source

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/shoal-project/shoal/csi/migration"
)

// claim is a reference that is not watched, for a node may only get claims. The
// volume behind it is saved in its place.
const claim = "claim"

// ClaimName is the claim that a volume of the pod stands for, its own for an
// ephemeral volume; "" for a volume of another kind.
func ClaimName(p *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(p, v)
	}
	return ""
}

// Volume asks what volume is bound to the claim that a pod's volume names, with
// upstream's words where there is none. While the API is away it is what the
// API last said. A volume of a cloud is shown as its CSI driver's.
func (o *Objects) Volume(ctx context.Context, p *corev1.Pod, v *corev1.Volume) (*corev1.PersistentVolume, error) {
	r := ref{claim, p.Namespace, ClaimName(p, v)}
	if o.Silent != nil && o.Silent() {
		if known := o.KnownVolume(p, v); known != nil {
			return known, nil
		}
	}
	pv, err := o.bound(ctx, p, v)
	if err == nil {
		if err := o.Saved.Put(r.key(), &SavedObject{Volume: pv}); err != nil {
			o.Log.Warn("a volume is not kept for when the API is away", "claim", r.namespace+"/"+r.name, "err", err)
		}
		return pv, nil
	}
	if known := o.KnownVolume(p, v); known != nil && !isAnswer(err) {
		return known, nil
	}
	return nil, fmt.Errorf("error processing PVC %s/%s: %w", r.namespace, r.name, err)
}

// errNotUsable is an answer of the API that forbids the use of a claim.
type errNotUsable struct{ error }

// isAnswer tells an answer of the API from silence.
func isAnswer(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && !apierrors.IsServerTimeout(err) && !apierrors.IsServiceUnavailable(err) &&
		!apierrors.IsInternalError(err) ||
		errors.As(err, new(errNotUsable))
}

// KnownVolume is the volume that Volume last returned, nil for none.
func (o *Objects) KnownVolume(p *corev1.Pod, v *corev1.Volume) *corev1.PersistentVolume {
	saved, err := o.Saved.Get(ref{claim, p.Namespace, ClaimName(p, v)}.key())
	if err != nil || saved == nil {
		return nil
	}
	return saved.Volume
}

func (o *Objects) bound(ctx context.Context, p *corev1.Pod, v *corev1.Volume) (*corev1.PersistentVolume, error) {
	if o.Client == nil {
		return nil, errors.New("no API server is configured")
	}
	unusable := func(format string, args ...any) error { return errNotUsable{fmt.Errorf(format, args...)} }
	c, err := o.Client.CoreV1().PersistentVolumeClaims(p.Namespace).Get(ctx, ClaimName(p, v), metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, fmt.Errorf("failed to fetch PVC from API server: %w", err)
	case v.Ephemeral != nil && !metav1.IsControlledBy(c, p):
		return nil, unusable("PVC %s/%s was not created for pod %s/%s (pod is not owner)", c.Namespace,
			c.Name, p.Namespace, p.Name)
	case c.DeletionTimestamp != nil && !slices.Contains(c.Finalizers, "kubernetes.io/pvc-protection"):
		return nil, unusable("PVC is being deleted")
	case c.Status.Phase != corev1.ClaimBound:
		return nil, unusable("PVC is not bound")
	case c.Spec.VolumeName == "":
		return nil, unusable("PVC has empty pvc.Spec.VolumeName")
	}
	pv, err := o.Client.CoreV1().PersistentVolumes().Get(ctx, c.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, fmt.Errorf("failed to fetch PV %s from API server: %w", c.Spec.VolumeName, err)
	case pv.Spec.ClaimRef == nil:
		return nil,
			unusable("found PV object %s but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim",
				pv.Name)
	case pv.Spec.ClaimRef.UID != c.UID:
		return nil, unusable("found PV object %s but its pv.Spec.ClaimRef.UID %s does not point to claim.UID %s",
			pv.Name, pv.Spec.ClaimRef.UID, c.UID)
	}
	pv.ManagedFields = nil
	if pv, err = migration.Volume(pv); err != nil {
		return nil, unusable("%w", err)
	}
	return pv, nil
}
