package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/csi/locality"
)

const selectedNode = "volume.kubernetes.io/selected-node"

// TestNodeRestrictionLocalStorage: with its certificate a node makes volumes for the
// claims that the scheduler gave to it, and no others.
func TestNodeRestrictionLocalStorage(t *testing.T) {
	given := func(name, node string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-1", Annotations: map[string]string{
				"volume.kubernetes.io/storage-provisioner": locality.Driver, selectedNode: node,
			}},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("local")},
		}
	}
	bound := given("bound", "n1")
	bound.Spec.VolumeName = "pv"
	volume := func(claim string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		pv := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-1", Labels: map[string]string{locality.NodeKey: "n1"}},
			Spec: corev1.PersistentVolumeSpec{
				ClaimRef:         &corev1.ObjectReference{Namespace: "ns", Name: claim, UID: "uid-1"},
				StorageClassName: "local",
				NodeAffinity:     locality.Affinity("n1"),
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					CSI: &corev1.CSIPersistentVolumeSource{Driver: locality.Driver, VolumeHandle: "pvc-uid-1"}},
			},
		}
		for _, c := range change {
			c(pv)
		}
		return pv
	}
	back := func(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
		c = c.DeepCopy()
		delete(c.Annotations, selectedNode)
		return c
	}
	labelled := func(node string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{}}}
		if node != "" {
			n.Labels[locality.NodeKey] = node
		}
		return n
	}
	room := func(namespace, node string) *storagev1.CSIStorageCapacity {
		return &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "x"},
			NodeTopology: locality.Topology(node)}
	}
	p, _ := connect(t, newNodeRestriction(), given("here", "n1"), given("there", "n2"), bound)
	for name, tt := range map[string]struct {
		resource  string
		operation admission.Operation
		obj, old  runtime.Object
		allow     bool
	}{
		"volume": {obj: volume("here"), allow: true},
		"host_path": {obj: volume("here", func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
		})},
		"other_driver": {obj: volume("here", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "x" })},
		"other_node": {obj: volume("here", func(pv *corev1.PersistentVolume) {
			pv.Spec.NodeAffinity = locality.Affinity("n2")
		})},
		"every_node":  {obj: volume("here", func(pv *corev1.PersistentVolume) { pv.Spec.NodeAffinity = nil })},
		"no_label":    {obj: volume("here", func(pv *corev1.PersistentVolume) { pv.Labels = nil })},
		"other_class": {obj: volume("here", func(pv *corev1.PersistentVolume) { pv.Spec.StorageClassName = "gold" })},
		"other_name":  {obj: volume("here", func(pv *corev1.PersistentVolume) { pv.Name = "x" })},
		"secret": {obj: volume("here", func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Name: "s"}
		})},
		"claim_of_other_node": {obj: volume("there")},
		"claim_bound":         {obj: volume("bound")},
		"claim_gone":          {obj: volume("gone"), allow: true}, // it had been made before
		"claim_unnamed": {obj: volume("gone", func(pv *corev1.PersistentVolume) {
			pv.Name, pv.Spec.ClaimRef.UID = "pvc-", ""
		})},
		"no_claim": {obj: volume("here", func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil })},
		"claim_of_same_name_gone": {allow: true, obj: volume("here", func(pv *corev1.PersistentVolume) {
			pv.Name, pv.Spec.ClaimRef.UID = "pvc-2", "2"
		})},
		"grow": {operation: admission.Update, old: volume("here"), allow: true,
			obj: volume("here", func(pv *corev1.PersistentVolume) {
				pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
				pv.Finalizers = []string{"x"}
			})},
		"turn": {operation: admission.Update, old: volume("here"),
			obj: volume("here", func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.Name = "there" })},
		"delete": {operation: admission.Delete, old: volume("here"), allow: true},
		"delete_other": {operation: admission.Delete,
			old: volume("here", func(pv *corev1.PersistentVolume) { pv.Spec.NodeAffinity = locality.Affinity("n2") })},
		"give_back": {resource: "persistentvolumeclaims", operation: admission.Update, old: given("here", "n1"),
			obj: back(given("here", "n1")), allow: true},
		"give_on": {resource: "persistentvolumeclaims", operation: admission.Update, old: given("here", "n1"),
			obj: given("here", "n2")},
		"give_back_of_other": {resource: "persistentvolumeclaims", operation: admission.Update, old: given("there", "n2"),
			obj: back(given("there", "n2"))},
		"give_back_bound": {resource: "persistentvolumeclaims", operation: admission.Update, old: bound, obj: back(bound)},
		"room":            {resource: "csistoragecapacities", obj: room("kube-system", "n1"), allow: true},
		"room_elsewhere":  {resource: "csistoragecapacities", obj: room("ns", "n1")},
		"room_of_other":   {resource: "csistoragecapacities", obj: room("kube-system", "n2")},
		"room_taken": {resource: "csistoragecapacities", operation: admission.Update, obj: room("kube-system", "n1"),
			old: room("kube-system", "n2")},
		"node": {resource: "nodes", operation: admission.Update, old: labelled(""), obj: labelled("n1"), allow: true},
		"node_as_other": {resource: "nodes", operation: admission.Update, old: labelled("n1"),
			obj: labelled("n2")},
		"node_new_as_other": {resource: "nodes", obj: labelled("n2")},
	} {
		t.Run(name, func(t *testing.T) {
			r := request{name: "n1", resource: tt.resource, operation: tt.operation, obj: tt.obj, old: tt.old,
				user: &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}}
			switch tt.resource {
			case "":
				r.resource = "persistentvolumes"
			case "csistoragecapacities":
				r.group = "storage.k8s.io"
			}
			if err := admit(p, r); (err == nil) != tt.allow {
				t.Errorf("got %v, want allowed %t", err, tt.allow)
			}
		})
	}
}
