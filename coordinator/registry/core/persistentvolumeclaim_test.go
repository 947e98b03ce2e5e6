package core

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
)

// TestDataSources: what of dataSource and dataSourceRef a claim keeps (PV-94,
// PV-96, PV-101, PV-102, PV-104, CLONE-1, CLONE-4).
func TestDataSources(t *testing.T) {
	local := func(group, kind string) *corev1.TypedLocalObjectReference {
		return &corev1.TypedLocalObjectReference{APIGroup: ptr.To(group), Kind: kind, Name: "source"}
	}
	ref := func(group, kind string) *corev1.TypedObjectReference {
		return &corev1.TypedObjectReference{APIGroup: ptr.To(group), Kind: kind, Name: "source"}
	}
	elsewhere := func(group, kind string) *corev1.TypedObjectReference {
		r := ref(group, kind)
		r.Namespace = ptr.To("elsewhere")
		return r
	}
	type spec = corev1.PersistentVolumeClaimSpec
	const snapshots = "snapshot.storage.k8s.io"
	for _, c := range []struct {
		name      string
		old       *spec
		now, want spec
	}{
		{"none", nil, spec{}, spec{}},
		{"a claim", nil, spec{DataSource: local("", "PersistentVolumeClaim")},
			spec{DataSource: local("", "PersistentVolumeClaim"), DataSourceRef: ref("", "PersistentVolumeClaim")}},
		{"a snapshot", nil, spec{DataSource: local(snapshots, "VolumeSnapshot")},
			spec{DataSource: local(snapshots, "VolumeSnapshot"), DataSourceRef: ref(snapshots, "VolumeSnapshot")}},
		{"a snapshot by reference", nil, spec{DataSourceRef: ref(snapshots, "VolumeSnapshot")},
			spec{DataSource: local(snapshots, "VolumeSnapshot"), DataSourceRef: ref(snapshots, "VolumeSnapshot")}},
		{"another kind in the old field is dropped", nil, spec{DataSource: local("example.com", "Image")}, spec{}},
		{"a snapshot of another group is dropped", nil,
			spec{DataSource: local("example.com", "VolumeSnapshot")}, spec{}},
		{"another kind by reference", nil, spec{DataSourceRef: ref("example.com", "Image")},
			spec{DataSource: local("example.com", "Image"), DataSourceRef: ref("example.com", "Image")}},
		{"both are left as they are, for validation to compare", nil,
			spec{DataSource: local("example.com", "Image"), DataSourceRef: ref("example.com", "Other")},
			spec{DataSource: local("example.com", "Image"), DataSourceRef: ref("example.com", "Other")}},
		{"of another namespace is dropped", nil, spec{DataSourceRef: elsewhere(snapshots, "VolumeSnapshot")}, spec{}},
		{"an object that has it keeps it", &spec{DataSourceRef: elsewhere(snapshots, "VolumeSnapshot")},
			spec{DataSourceRef: elsewhere(snapshots, "VolumeSnapshot")},
			spec{DataSourceRef: elsewhere(snapshots, "VolumeSnapshot")}},
		{"an old client that knows the old field only",
			&spec{DataSource: local("example.com", "Image"), DataSourceRef: ref("example.com", "Image")},
			spec{DataSource: local("example.com", "Image")},
			spec{DataSource: local("example.com", "Image"), DataSourceRef: ref("example.com", "Image")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.now
			settleSources(&got, c.old)
			if !equality.Semantic.DeepEqual(got, c.want) {
				t.Errorf("kept dataSource %v, dataSourceRef %v; want %v, %v",
					got.DataSource, got.DataSourceRef, c.want.DataSource, c.want.DataSourceRef)
			}
		})
	}
}
