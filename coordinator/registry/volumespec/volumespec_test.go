package volumespec

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// TestValidate covers PV-48, PV-52, PV-53, PV-59, VOL-56, VOL-57.
func TestValidate(t *testing.T) {
	source := func(s corev1.PersistentVolumeSource) func(*corev1.PersistentVolumeSpec) {
		return func(v *corev1.PersistentVolumeSpec) { v.PersistentVolumeSource = s }
	}
	for _, c := range []struct {
		name   string
		change func(*corev1.PersistentVolumeSpec)
		want   string
	}{
		{"valid", func(*corev1.PersistentVolumeSpec) {}, ""},
		{"no modes", func(s *corev1.PersistentVolumeSpec) { s.AccessModes = nil }, "spec.accessModes: Required value"},
		{"alone", func(s *corev1.PersistentVolumeSpec) { s.AccessModes = append(s.AccessModes, corev1.ReadWriteOncePod) },
			"spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"},
		{"zero", func(s *corev1.PersistentVolumeSpec) {
			s.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("0")}
		},
			`spec.capacity[storage]: Invalid value: "0": must be greater than zero`},
		{"policy", func(s *corev1.PersistentVolumeSpec) { s.PersistentVolumeReclaimPolicy = "Keep" },
			`spec.persistentVolumeReclaimPolicy: Unsupported value: "Keep": supported values: "Delete", "Recycle", "Retain"`},
		{"no source", source(corev1.PersistentVolumeSource{}), "spec: Required value: must specify a volume type"},
		{"two sources", func(s *corev1.PersistentVolumeSpec) { s.NFS = &corev1.NFSVolumeSource{} },
			"spec.nfs: Forbidden: may not specify more than 1 volume type"},
		{"hostPath",
			source(corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/a/../b", Type: ptr.To(corev1.HostPathUnset)}}),
			`spec.hostPath.path: Invalid value: "/a/../b": must not contain '..'`},
		{"local", source(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/x"}}),
			"spec.nodeAffinity: Required value: Local volume requires node affinity"},
		{"affinity", func(s *corev1.PersistentVolumeSpec) { s.NodeAffinity = &corev1.VolumeNodeAffinity{} },
			"spec.nodeAffinity.required: Required value: must specify required node constraints"},
		{"csi", source(
			corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "d",
					NodePublishSecretRef: &corev1.SecretReference{Name: "s"}}}),
			"[spec.csi.volumeHandle: Required value, spec.csi.nodePublishSecretRef.namespace: Required value]"},
		{"attributes", func(s *corev1.PersistentVolumeSpec) { s.VolumeAttributesClassName = ptr.To("gold") },
			"spec.csi: Required value: has to be specified when using volumeAttributesClassName"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := corev1.PersistentVolumeSpec{
				Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}},
			}
			Default(&s)
			c.change(&s)
			got := ""
			if errs := Validate(&s, "v", field.NewPath("spec")); len(errs) > 0 {
				got = errs.ToAggregate().Error()
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// A source that is in no order would never be checked.
func TestSourceOrderIsWhole(t *testing.T) {
	source := reflect.TypeFor[corev1.PersistentVolumeSource]()
	if len(sourceOrder) != source.NumField() {
		t.Errorf("%d sources in order, %d in the API", len(sourceOrder), source.NumField())
	}
	for _, name := range sourceOrder {
		if _, ok := source.FieldByName(name); !ok {
			t.Errorf("no source %s", name)
		}
	}
}
