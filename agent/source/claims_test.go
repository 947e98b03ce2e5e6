package source

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// kept is a store in memory.
type kept map[string]*SavedObject

func (k kept) Get(key string) (*SavedObject, error) { return k[key], nil }
func (k kept) Put(key string, o *SavedObject) error { k[key] = o; return nil }
func (k kept) Delete(key string) error              { delete(k, key); return nil }

// A claim's volume is what the API says, and what it last said while it is silent.
func TestVolume(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{UID: "u"}}}
	client := fake.NewClientset(claim, pv)
	o := &Objects{Client: client, Saved: kept{}, Log: slog.New(slog.DiscardHandler)}
	o.Start(context.Background())
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
			Name: "v",
			VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}}}
	v := &pod.Spec.Volumes[0]
	o.Track(pod)
	if got, err := o.Volume(t.Context(), pod, v); err != nil || got.Name != "pv" {
		t.Fatalf("got %v, %v", got, err)
	}
	silent := true
	client.PrependReactor("get", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		return silent, nil, errors.New("connection refused")
	})
	if got, err := o.Volume(t.Context(), pod, v); err != nil || got.Name != "pv" {
		t.Errorf("while the API is silent: %v, %v", got, err)
	}
	asked := len(client.Actions())
	o.Silent = func() bool { return silent }
	if got, err := o.Volume(t.Context(), pod, v); err != nil || got.Name != "pv" || len(client.Actions()) != asked {
		t.Errorf("where it is known to be silent: %v, %v, and %d requests", got, err, len(client.Actions())-asked)
	}
	silent = false
	claim.Status.Phase = corev1.ClaimLost
	if _, err := client.CoreV1().PersistentVolumeClaims("ns").UpdateStatus(t.Context(), claim,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Volume(t.Context(), pod, v); err == nil || err.Error() != "error processing PVC ns/c: PVC is not bound" {
		t.Errorf("got %v", err)
	}
	o.Untrack(pod.UID)
	if got := o.KnownVolume(pod, v); got != nil {
		t.Errorf("%s is kept for no pod", got.Name)
	}
}

// A volume of a cloud is what the driver calls it that has taken the plugin over; one
// whose name the driver cannot know is of no use.
func TestVolumeOfACloud(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}}}
	for id, want := range map[string]string{"aws://z/vol-1": "vol-1", "aws://z/x": ""} {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{UID: "u"}, PersistentVolumeSource: corev1.PersistentVolumeSource{
				AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id}}}}
		o := &Objects{Client: fake.NewClientset(claim, pv), Saved: kept{}, Log: slog.New(slog.DiscardHandler)}
		got, err := o.Volume(t.Context(), pod, &pod.Spec.Volumes[0])
		switch {
		case want == "" && err == nil:
			t.Errorf("%s: got %v", id, got)
		case want != "" && (err != nil || got.Spec.CSI == nil || got.Spec.CSI.VolumeHandle != want):
			t.Errorf("%s: got %v, %v", id, got, err)
		}
	}
}
