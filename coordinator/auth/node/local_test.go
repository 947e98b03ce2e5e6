package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shoal-project/shoal/csi/locality"
)

// TestAuthorizeLocalStorage is what node n1 may do for the volumes that it makes
// itself, and may not do to those of n2 or of other drivers.
func TestAuthorizeLocalStorage(t *testing.T) {
	claim := func(name, driver, node string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			Annotations: map[string]string{
				"volume.kubernetes.io/storage-provisioner": driver, "volume.kubernetes.io/selected-node": node,
			}}}
	}
	pv := func(name, driver, node string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			NodeAffinity: locality.Affinity(node),
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver}},
		}}
	}
	room := func(name, node string) *storagev1.CSIStorageCapacity {
		return &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name},
			NodeTopology: locality.Topology(node)}
	}
	from := func(snapshot string, c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
		group := locality.SnapshotGroup
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: snapshot}
		return c
	}
	done := from("done", claim("of-done", locality.Driver, "n1"))
	done.Spec.VolumeName = "mine"
	a := connect(t, from("s", claim("of-s", locality.Driver, "n1")), from("t", claim("of-t", locality.Driver, "n2")),
		from("foreign", claim("of-foreign", "x.example.com", "n1")), done, claim("here", locality.Driver, "n1"),
		claim("there", locality.Driver, "n2"),
		claim("foreign", "x.example.com", "n1"), pv("mine", locality.Driver, "n1"), pv("theirs", locality.Driver, "n2"),
		pv("foreign", "x.example.com", "n1"), room("mine", "n1"), room("theirs", "n2"))
	a.world.Load().extension = func(_ context.Context, path ...string) ([]byte, error) {
		const content = `{"spec": {"driver": %q, "volumeSnapshotRef": {"namespace": %q, "name": %q}}}`
		switch strings.Join(path, "/") {
		case "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/of-s":
			return fmt.Appendf(nil, content, locality.Driver, "ns", "s"), nil
		case "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/of-t":
			return fmt.Appendf(nil, content, locality.Driver, "ns", "t"), nil
		case "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/elsewhere":
			return fmt.Appendf(nil, content, locality.Driver, "other", "s"), nil
		case "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/foreign":
			return fmt.Appendf(nil, content, "x.example.com", "ns", "s"), nil
		}
		return nil, errors.New("not there")
	}
	const claims, volumes = "persistentvolumeclaims", "persistentvolumes"
	const snapshots, contents = "volumesnapshots", "volumesnapshotcontents"
	for name, tt := range map[string]struct {
		verb, resource, sub, name, fields, labels string
		allow                                     bool
	}{
		"claims_here":      {verb: "watch", resource: claims, fields: locality.SelectedNode + "=n1", allow: true},
		"claims_there":     {verb: "watch", resource: claims, fields: locality.SelectedNode + "=n2"},
		"claims_all":       {verb: "list", resource: claims},
		"claim_read":       {verb: "get", resource: claims, name: "here", allow: true},
		"claim_read_other": {verb: "get", resource: claims, name: "there"},
		"claim_back":       {verb: "patch", resource: claims, name: "here", allow: true},
		"claim_there":      {verb: "patch", resource: claims, name: "there"},
		"claim_foreign":    {verb: "patch", resource: claims, name: "foreign"},
		"claim_delete":     {verb: "delete", resource: claims, name: "here"},
		"claim_status":     {verb: "update", resource: claims, sub: "status", name: "here", allow: true},
		"status_there":     {verb: "update", resource: claims, sub: "status", name: "there"},
		"volumes_here":     {verb: "watch", resource: volumes, labels: locality.NodeKey + "=n1", allow: true},
		"volumes_there":    {verb: "watch", resource: volumes, labels: locality.NodeKey + "=n2"},
		"volumes_both":     {verb: "watch", resource: volumes, labels: locality.NodeKey + " in (n1,n2)"},
		"volumes_not":      {verb: "watch", resource: volumes, labels: locality.NodeKey + "!=n1"},
		"volumes_all":      {verb: "list", resource: volumes},
		"volume_create":    {verb: "create", resource: volumes, allow: true},
		"volume_delete":    {verb: "delete", resource: volumes, name: "mine", allow: true},
		"volume_patch":     {verb: "patch", resource: volumes, name: "mine", allow: true},
		"volume_status":    {verb: "patch", resource: volumes, sub: "status", name: "mine"},
		"volume_theirs":    {verb: "delete", resource: volumes, name: "theirs"},
		"volume_foreign":   {verb: "delete", resource: volumes, name: "foreign"},
		"volumes_clear":    {verb: "deletecollection", resource: volumes},
		"class_read":       {verb: "get", resource: "storageclasses", name: "local", allow: true},
		"classes_watch":    {verb: "watch", resource: "storageclasses", allow: true},
		"class_write":      {verb: "update", resource: "storageclasses", name: "local"},
		"capacity_create":  {verb: "create", resource: "csistoragecapacities", allow: true},
		"capacity_update":  {verb: "update", resource: "csistoragecapacities", name: "mine", allow: true},
		"capacity_theirs":  {verb: "delete", resource: "csistoragecapacities", name: "theirs"},
		"capacities_watch": {verb: "watch", resource: "csistoragecapacities"},

		"snapshot_read":         {verb: "get", resource: snapshots, name: "s", allow: true},
		"snapshot_status":       {verb: "get", resource: snapshots, sub: "status", name: "s"},
		"snapshot_write":        {verb: "patch", resource: snapshots, name: "s"},
		"snapshot_delete":       {verb: "delete", resource: snapshots, name: "s"},
		"snapshots_all":         {verb: "list", resource: snapshots},
		"snapshots_watch":       {verb: "watch", resource: snapshots, name: "s"},
		"snapshot_create":       {verb: "create", resource: snapshots, name: "s"},
		"snapshot_other_node":   {verb: "get", resource: snapshots, name: "t"},
		"snapshot_other_driver": {verb: "get", resource: snapshots, name: "foreign"},
		"snapshot_not_wanted":   {verb: "get", resource: snapshots, name: "x"},
		"snapshot_restored":     {verb: "get", resource: snapshots, name: "done"},
		"content_read":          {verb: "get", resource: contents, name: "of-s", allow: true},
		"content_write":         {verb: "update", resource: contents, name: "of-s"},
		"content_status":        {verb: "patch", resource: contents, sub: "status", name: "of-s"},
		"contents_all":          {verb: "list", resource: contents},
		"content_other_node":    {verb: "get", resource: contents, name: "of-t"},
		"content_other_space":   {verb: "get", resource: contents, name: "elsewhere"},
		"content_other_driver":  {verb: "get", resource: contents, name: "foreign"},
		"content_missing":       {verb: "get", resource: contents, name: "missing"},
	} {
		t.Run(name, func(t *testing.T) {
			attrs := authorizer.AttributesRecord{
				User:            &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}},
				ResourceRequest: true, Verb: tt.verb, Resource: tt.resource, Subresource: tt.sub, Name: tt.name,
			}
			switch tt.resource {
			case claims:
				attrs.Namespace = "ns"
			case "csistoragecapacities":
				attrs.APIGroup, attrs.Namespace = "storage.k8s.io", "kube-system"
			case snapshots:
				attrs.APIGroup, attrs.Namespace = locality.SnapshotGroup, "ns"
			case contents:
				attrs.APIGroup = locality.SnapshotGroup
			case "storageclasses":
				attrs.APIGroup = "storage.k8s.io"
			}
			if tt.fields != "" {
				attrs.FieldSelectorRequirements = fields.ParseSelectorOrDie(tt.fields).Requirements()
			}
			if tt.labels != "" {
				selector, err := labels.Parse(tt.labels)
				if err != nil {
					t.Fatal(err)
				}
				attrs.LabelSelectorRequirements, _ = selector.Requirements()
			}
			decision, reason, err := a.Authorize(context.Background(), attrs)
			if err != nil || (decision == authorizer.DecisionAllow) != tt.allow {
				t.Errorf("got %v %q %v, want %t", decision, reason, err, tt.allow)
			}
		})
	}
}
