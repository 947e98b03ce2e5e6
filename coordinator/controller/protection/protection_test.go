package protection

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestSettle covers PV-12, PV-13.
func TestSettle(t *testing.T) {
	now := metav1.Now()
	for _, c := range []struct {
		name    string
		deleted *metav1.Time
		have    []string
		used    bool
		want    []string
		changes bool
	}{
		{"new", nil, []string{"x"}, false, []string{"x", "f"}, true},
		{"protected", nil, []string{"f"}, false, nil, false},
		{"deleted in use", &now, []string{"f"}, true, nil, false},
		{"deleted", &now, []string{"f", "x"}, false, []string{"x"}, true},
		{"deleted without it", &now, []string{"x"}, false, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &metav1.ObjectMeta{Finalizers: c.have, DeletionTimestamp: c.deleted}
			got, changes, err := finalizersFor(m, "f", func() (bool, error) { return c.used, nil })
			if err != nil || changes != c.changes || !slices.Equal(got, c.want) {
				t.Errorf("got %v, %v, %v", got, changes, err)
			}
		})
	}
}

// TestUsesClaim covers PV-14.
func TestUsesClaim(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "p-v", Namespace: "ns",
			OwnerReferences: []metav1.OwnerReference{{UID: "p-uid", Controller: ptr.To(true)}}}}
	pod := func(node string, v corev1.VolumeSource) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "p-uid"},
			Spec:       corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "v", VolumeSource: v}}},
		}
	}
	named := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "p-v"}}
	own := corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	ended := pod("n", own)
	ended.DeletionTimestamp, ended.DeletionGracePeriodSeconds = ptr.To(metav1.Now()), ptr.To[int64](0)
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want bool
	}{
		{"on a node", pod("n", named), true},
		{"waiting", pod("", named), false},
		{"its own", pod("n", own), true},
		{"its own, ended", ended, false},
		{"another", pod("n", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := usesClaim(c.pod, claim); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
