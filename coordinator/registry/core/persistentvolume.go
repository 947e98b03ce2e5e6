package core

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/volumespec"
)

func persistentVolume() kind.Kind {
	spec, status := corev1.PersistentVolumeSpec{}.SwaggerDoc(), corev1.PersistentVolumeStatus{}.SwaggerDoc()
	return kind.Of[corev1.PersistentVolume]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "persistentvolumes", Singular: "persistentvolume",
			ShortNames: []string{"pv"}, ClusterScoped: true, List: &corev1.PersistentVolumeList{},
		},
		Default: func(v *corev1.PersistentVolume) {
			if v.Status.Phase == "" {
				v.Status.Phase = corev1.VolumePending
			}
			volumespec.Default(&v.Spec)
		},
		Create: func(_ context.Context, v *corev1.PersistentVolume) {
			now := metav1.Now()
			v.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: &now}
		},
		Validate: func(_ context.Context, v *corev1.PersistentVolume) field.ErrorList { return validateVolume(v) },
		ValidateUpdate: func(_ context.Context, v, old *corev1.PersistentVolume) field.ErrorList {
			// Twice, as upstream.
			errs := append(validateVolume(v), volumespec.Validate(&v.Spec, v.Name, field.NewPath("spec"))...)
			return append(errs, validateVolumeUpdate(v, old)...)
		},
		Warnings: func(_ context.Context, v, _ *corev1.PersistentVolume) []string {
			return volumespec.Warnings(&v.ObjectMeta, &v.Spec)
		},
		Status: &kind.StatusOf[corev1.PersistentVolume]{
			Copy:   func(to, from *corev1.PersistentVolume) { to.Status = from.Status },
			Update: stampPhase,
		},
		ReturnDeleted: true,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Capacity", "string", spec["capacity"]),
			kind.Column("Access Modes", "string", spec["accessModes"]),
			kind.Column("Reclaim Policy", "string", spec["persistentVolumeReclaimPolicy"]),
			kind.Column("Status", "string", status["phase"]),
			kind.Column("Claim", "string", spec["claimRef"]),
			kind.Column("StorageClass", "string", "StorageClass of the pv"),
			kind.Column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pv"),
			kind.Column("Reason", "string", status["reason"]),
			kind.AgeColumn(),
			kind.Wide("VolumeMode", "string", spec["volumeMode"]),
		},
		Row: volumeRow,
	}.Kind()
}

// stampPhase notes when the phase changed, unless the writer says so itself (KEP-3762).
func stampPhase(_ context.Context, v, old *corev1.PersistentVolume) {
	at, was := &v.Status.LastPhaseTransitionTime, old.Status.LastPhaseTransitionTime
	same := v.Status.Phase == old.Status.Phase
	if same && *at == nil {
		*at = was
	}
	if !same && (*at == nil || (*at).Equal(was)) {
		now := metav1.Now()
		*at = &now
	}
}

func validateVolume(v *corev1.PersistentVolume) field.ErrorList {
	return append(volumespec.Validate(&v.Spec, v.Name, field.NewPath("spec")),
		volumespec.ValidateAnnotations(&v.ObjectMeta, &v.Spec)...)
}

// stableLabels are the labels of nodes that have taken the place of older ones.
var stableLabels = map[string]string{
	corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
	corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
	corev1.LabelInstanceType:            corev1.LabelInstanceTypeStable,
	"beta.kubernetes.io/arch":           corev1.LabelArchStable,
	"beta.kubernetes.io/os":             corev1.LabelOSStable,
}

// sameButStable compares what a volume asks of nodes, now and before: a label may
// become the one that has taken its place.
var sameButStable = func() conversion.Equalities {
	same := equality.Semantic.Copy()
	err := same.AddFunc(func(now, was corev1.NodeSelectorRequirement) bool {
		if stableLabels[was.Key] == now.Key { // no key is another rule's
			was.Key = now.Key
		}
		return equality.Semantic.DeepEqual(now, was)
	})
	if err != nil {
		panic(err) // the function's form is wrong
	}
	return same
}()

func validateVolumeUpdate(v, old *corev1.PersistentVolume) (errs field.ErrorList) {
	now, was := v.Spec.PersistentVolumeSource, old.Spec.PersistentVolumeSource
	if was.CSI != nil && was.CSI.ControllerExpandSecretRef == nil && now.CSI != nil {
		now.CSI = now.CSI.DeepCopy()
		now.CSI.ControllerExpandSecretRef = nil
	}
	if !equality.Semantic.DeepEqual(now, was) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "persistentvolumesource"), "spec.persistentvolumesource is immutable after creation"))
	}
	errs = append(errs, immutable(v.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	if was := old.Spec.NodeAffinity; was != nil && !sameButStable.DeepEqual(v.Spec.NodeAffinity, was) {
		errs = append(errs, field.Invalid(field.NewPath("nodeAffinity"), v.Spec.NodeAffinity,
			"field is immutable, except for updating from beta label to GA"))
	}
	if old.Spec.VolumeAttributesClassName != nil && v.Spec.VolumeAttributesClassName == nil {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "volumeAttributesClassName"), "update from non-nil value to nil is forbidden"))
	}
	return errs
}

func volumeRow(v *corev1.PersistentVolume) []any {
	claim := ""
	if ref := v.Spec.ClaimRef; ref != nil {
		claim = ref.Namespace + "/" + ref.Name
	}
	phase := string(v.Status.Phase)
	if v.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	class := v.Annotations[corev1.BetaStorageClassAnnotation]
	if class == "" {
		class = v.Spec.StorageClassName
	}
	size := v.Spec.Capacity[corev1.ResourceStorage]
	return []any{
		v.Name, size.String(), accessModes(v.Spec.AccessModes),
		string(v.Spec.PersistentVolumeReclaimPolicy), phase, claim, class,
		orUnset(deref(v.Spec.VolumeAttributesClassName)), v.Status.Reason, kind.Age(v.CreationTimestamp),
		orUnset(string(deref(v.Spec.VolumeMode))),
	}
}

func orUnset(s string) string {
	if s == "" {
		return "<unset>"
	}
	return s
}

// accessModes prints modes in one order: RWO,ROX,RWX,RWOP.
func accessModes(modes []corev1.PersistentVolumeAccessMode) string {
	var out []string
	for _, m := range []struct {
		mode corev1.PersistentVolumeAccessMode
		text string
	}{{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"},
		{corev1.ReadWriteOncePod, "RWOP"}} {
		if slices.Contains(modes, m.mode) {
			out = append(out, m.text)
		}
	}
	return strings.Join(out, ",")
}
