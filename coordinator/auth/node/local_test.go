package node

import (
	"context"
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
	a := connect(t, claim("here", locality.Driver, "n1"), claim("there", locality.Driver, "n2"),
		claim("foreign", "x.example.com", "n1"), pv("mine", locality.Driver, "n1"), pv("theirs", locality.Driver, "n2"),
		pv("foreign", "x.example.com", "n1"), room("mine", "n1"), room("theirs", "n2"))
	const claims, volumes = "persistentvolumeclaims", "persistentvolumes"
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
