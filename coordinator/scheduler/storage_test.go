package scheduler

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// A volume of a cloud is looked at as its CSI driver's, in whose zone its nodes are.
func TestVolumeOfACloud(t *testing.T) {
	f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	s := newStorage(f, nil)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"z"}}}}}}},
		PersistentVolumeSource: corev1.PersistentVolumeSource{
			AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}}}
	if err := f.Core().V1().PersistentVolumes().Informer().GetIndexer().Add(pv); err != nil {
		t.Fatal(err)
	}
	got, err := s.Volume("v")
	if err != nil || got.Spec.CSI == nil || got.Spec.CSI.VolumeHandle != "vol-1" ||
		got.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Key != "topology.ebs.csi.aws.com/zone" {
		t.Errorf("got %v, %v", got, err)
	}
	if pv.Spec.CSI != nil {
		t.Error("the cached volume was changed")
	}
}
