package storage

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func expect(t *testing.T, errs field.ErrorList, want string) {
	t.Helper()
	got := ""
	if len(errs) > 0 {
		got = errs.ToAggregate().Error()
	}
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func validClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		Provisioner: "example.com/disk", ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate),
	}
}

func many(n int) map[string]string {
	out := map[string]string{}
	for i := range n {
		out[fmt.Sprint("k", i)] = "v"
	}
	return out
}

// TestStorageClass covers SC-1, SC-5, SC-8, SC-11, SC-16, SC-19.
func TestStorageClass(t *testing.T) {
	zones := func(keys ...string) (t corev1.TopologySelectorTerm) {
		for _, k := range keys {
			t.MatchLabelExpressions = append(t.MatchLabelExpressions,
				corev1.TopologySelectorLabelRequirement{Key: k, Values: []string{"a"}})
		}
		return t
	}
	for _, c := range []struct {
		name   string
		change func(*storagev1.StorageClass)
		want   string
	}{
		{"valid", func(*storagev1.StorageClass) {}, ""},
		{"no-provisioner", func(c *storagev1.StorageClass) { c.Provisioner = "" }, "provisioner: Required value"},
		{"policy", func(c *storagev1.StorageClass) { c.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimRecycle) },
			`reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain"`},
		{"mode", func(c *storagev1.StorageClass) { c.VolumeBindingMode = ptr.To[storagev1.VolumeBindingMode]("Later") },
			`volumeBindingMode: Unsupported value: "Later": supported values: "Immediate", "WaitForFirstConsumer"`},
		{"many-parameters", func(c *storagev1.StorageClass) { c.Parameters = many(513) }, "parameters: Too long: may not be more than 512 bytes"},
		{"long-parameters",
			func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"k": strings.Repeat("x", 256<<10)} },
			"parameters: Too long: may not be more than 262144 bytes"},
		{"empty-key", func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"": "x"} },
			`parameters: Invalid value: "": field can not be empty.`},
		{"topology-twice", func(c *storagev1.StorageClass) {
			c.AllowedTopologies = []corev1.TopologySelectorTerm{zones("zone"), zones("zone")}
		},
			`allowedTopologies[1].matchLabelExpressions: Duplicate value: ""`},
		{"key-twice", func(c *storagev1.StorageClass) {
			c.AllowedTopologies = []corev1.TopologySelectorTerm{zones("zone", "zone")}
		},
			`allowedTopologies[0].matchLabelExpressions[1].key: Duplicate value: "zone"`},
		{"no-values", func(c *storagev1.StorageClass) {
			c.AllowedTopologies = []corev1.TopologySelectorTerm{
				{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone"}}}}
		}, "allowedTopologies[0].matchLabelExpressions[0].values: Required value"},
	} {
		t.Run(c.name, func(t *testing.T) {
			class := validClass()
			c.change(class)
			expect(t, validateClass(class), c.want)
		})
	}
	changed := validClass()
	changed.Provisioner, changed.Parameters = "other", map[string]string{"a": "b"}
	// SC-2
	expect(t, validateClassUpdate(changed, validClass()), `[parameters: Invalid value: {"a":"b"}: field is immutable, provisioner: Invalid value: "other": field is immutable]`)
}

func validDriver() *storagev1.CSIDriver {
	d := &storagev1.CSIDriver{}
	defaultDriver(&d.Spec)
	return d
}

func TestCSIDriver(t *testing.T) {
	s := validDriver().Spec
	if !*s.AttachRequired || *s.PodInfoOnMount || *s.StorageCapacity || *s.RequiresRepublish || *s.SELinuxMount ||
		*s.FSGroupPolicy != storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy || len(s.VolumeLifecycleModes) != 1 {
		t.Errorf("got defaults %+v", s)
	}
	for _, c := range []struct {
		name   string
		change func(*storagev1.CSIDriverSpec)
		want   string
	}{
		{"valid", func(*storagev1.CSIDriverSpec) {}, ""},
		{"tokens", func(s *storagev1.CSIDriverSpec) { s.TokenRequests = []storagev1.TokenRequest{{}, {}} },
			`spec.tokenRequests[1].audience: Duplicate value: ""`},
		{"short", func(s *storagev1.CSIDriverSpec) {
			s.TokenRequests = []storagev1.TokenRequest{{ExpirationSeconds: ptr.To[int64](599)}}
		},
			"spec.tokenRequests[0].expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"},
		{"modes", func(s *storagev1.CSIDriverSpec) { s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{"Never"} },
			`spec.volumeLifecycleModes: Unsupported value: "Never": supported values: "Persistent", "Ephemeral"`},
		{"groups", func(s *storagev1.CSIDriverSpec) { s.FSGroupPolicy = ptr.To[storagev1.FSGroupPolicy]("Some") },
			`spec.fsGroupPolicy: Unsupported value: "Some": supported values: "File", "None", "ReadWriteOnceWithFSType"`},
		{"period", func(s *storagev1.CSIDriverSpec) { s.NodeAllocatableUpdatePeriodSeconds = ptr.To[int64](9) },
			"spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 9: must be greater than or equal to 10 seconds"},
		{"secrets", func(s *storagev1.CSIDriverSpec) { s.ServiceAccountTokenInSecrets = ptr.To(true) },
			"spec.serviceAccountTokenInSecrets: Invalid value: true: serviceAccountTokenInSecrets is set but no tokenRequests are specified"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := validDriver()
			c.change(&d.Spec)
			expect(t, validateDriver(&d.Spec, field.NewPath("spec")), c.want)
		})
	}
}

func TestCSINode(t *testing.T) {
	node := func(drivers ...storagev1.CSINodeDriver) *storagev1.CSINode {
		return &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: drivers}}
	}
	for _, c := range []struct {
		name string
		node *storagev1.CSINode
		want string
	}{
		{"valid", node(storagev1.CSINodeDriver{Name: "d.example.com", NodeID: "n", TopologyKeys: []string{"zone"}}), ""},
		{"twice", node(storagev1.CSINodeDriver{Name: "d", NodeID: "n"}, storagev1.CSINodeDriver{Name: "d", NodeID: "n"}),
			`spec.drivers[1].name: Duplicate value: "d"`},
		{"no-id", node(storagev1.CSINodeDriver{Name: "d"}), "spec.drivers[0].nodeID: Required value"},
		{"long-id", node(storagev1.CSINodeDriver{Name: "d", NodeID: strings.Repeat("x", 257)}),
			`spec.drivers[0].nodeID: Invalid value: "` + strings.Repeat("x", 257) + `": must be 256 characters or less`},
		{"count",
			node(storagev1.CSINodeDriver{Name: "d", NodeID: "n",
				Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](-1)}}),
			"spec.drivers[0].allocatable.count: Invalid value: -1: must be greater than or equal to 0"},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, validateNode(c.node), c.want) })
	}
	was := node(
		storagev1.CSINodeDriver{Name: "d", NodeID: "n",
			Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](1)}})
	is := was.DeepCopy()
	is.Spec.Drivers[0].Allocatable.Count = ptr.To[int32](2)
	expect(t, validateNodeUpdate(is, was), "")
	is.Spec.Drivers[0].NodeID = "other"
	if errs := validateNodeUpdate(is, was); len(errs) != 1 || errs[0].Detail != "field is immutable" {
		t.Errorf("got %v", errs)
	}
}

func TestVolumeAttachment(t *testing.T) {
	inline := &corev1.PersistentVolumeSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}},
	}
	host := inline.DeepCopy()
	host.PersistentVolumeSource = corev1.PersistentVolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: "/x", Type: ptr.To(corev1.HostPathUnset)}}
	host.StorageClassName = "fast"
	for _, c := range []struct {
		name   string
		source storagev1.VolumeAttachmentSource
		status storagev1.VolumeAttachmentStatus
		want   string
	}{
		{"volume", storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv")},
			storagev1.VolumeAttachmentStatus{}, ""},
		{"inline", storagev1.VolumeAttachmentSource{InlineVolumeSpec: inline}, storagev1.VolumeAttachmentStatus{}, ""},
		{"none", storagev1.VolumeAttachmentSource{}, storagev1.VolumeAttachmentStatus{},
			"spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName"},
		{"both", storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv"), InlineVolumeSpec: inline},
			storagev1.VolumeAttachmentStatus{},
			"spec.source: Forbidden: must specify exactly one of inlineVolumeSpec and persistentVolumeName"},
		{"inline-host", storagev1.VolumeAttachmentSource{InlineVolumeSpec: host}, storagev1.VolumeAttachmentStatus{},
			"[spec.source.inlineVolumeSpec.csi: Required value: has to be specified in the context of inline volumes, " +
				"spec.source.inlineVolumeSpec.storageClassName: Forbidden: may not be specified in the context of inline volumes]"},
		{"error-code", storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv")},
			storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{ErrorCode: ptr.To[int32](-1)}},
			"status.attachError.errorCode: Invalid value: -1: must be between 0 and 2147483647, inclusive"},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, validateAttachment(&storagev1.VolumeAttachment{
				Spec: storagev1.VolumeAttachmentSpec{Attacher: "d", NodeName: "n", Source: c.source}, Status: c.status,
			}), c.want)
		})
	}
}

func TestVolumeAttributesClass(t *testing.T) {
	expect(t,
		validateAttributes(
			&storagev1.VolumeAttributesClass{DriverName: "d", Parameters: map[string]string{"iops": "1"}}), "")
	expect(t, validateAttributes(&storagev1.VolumeAttributesClass{}),
		"[driverName: Required value, parameters: Required value: must contain at least one key/value pair]")
}
