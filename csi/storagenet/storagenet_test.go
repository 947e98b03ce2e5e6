package storagenet

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestName(t *testing.T) {
	for want, source := range map[corev1.UniqueVolumeName]corev1.PersistentVolumeSource{
		"kubernetes.io/iscsi/10.0.0.1:3260:iqn.2001-04.com.example:a:2": {ISCSI: &corev1.ISCSIPersistentVolumeSource{
			TargetPortal: "10.0.0.1:3260", IQN: "iqn.2001-04.com.example:a", Lun: 2}},
		"kubernetes.io/fc/[50060e80 50060e81]:0": {FC: &corev1.FCVolumeSource{
			TargetWWNs: []string{"50060e80", "50060e81"}, Lun: ptr.To[int32](0)}},
		"kubernetes.io/fc/[3600508b4]": {FC: &corev1.FCVolumeSource{WWIDs: []string{"3600508b4"}}},
	} {
		pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source}}
		if got := Name(pv); got != want || !Is(got) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	none := &corev1.PersistentVolume{}
	none.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}
	bad := &corev1.PersistentVolume{}
	bad.Spec.FC = &corev1.FCVolumeSource{TargetWWNs: []string{"50060e80"}}
	for _, pv := range []*corev1.PersistentVolume{nil, none, bad} {
		if got := Name(pv); got != "" {
			t.Errorf("%s", got)
		}
	}
	if Is("kubernetes.io/csi/d^h") {
		t.Error("a driver's volume is taken for a disk")
	}
}
