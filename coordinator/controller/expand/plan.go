package expand

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/csi/migration"
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
	if plugin := migration.Plugin(pv); plugin != "" {
		return step{Resizer: migration.Driver(plugin), Type: corev1.EventTypeNormal,
			Message: "CSI migration enabled for " + plugin + "; waiting for external resizer to expand the pvc"}
	}
	s := step{Type: corev1.EventTypeNormal, Message: "waiting for an external controller to expand this PVC"}
	if pv.Spec.CSI == nil && pv.Spec.FlexVolume == nil {
		s.Type = corev1.EventTypeWarning // nobody is known who could
	}
	return s
}
