package ephemeral

import (
	"context"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// TestReconcile covers EPH-10, EPH-11, EPH-16, EPH-17.
func TestReconcile(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "my-app", UID: "u"},
		Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{
				{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
					VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
						ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"type": "x"}}},
				}}}}},
	}
	for _, c := range []struct {
		name string
		have []corev1.PersistentVolumeClaim
		want string
	}{
		{"none", nil, ""},
		{"another's", []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "my-app-scratch"}}},
			"PVC ns/my-app-scratch was not created for pod ns/my-app (pod is not owner)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := fake.NewClientset()
			factory := informers.NewSharedInformerFactory(client, 0)
			loop, err := New(controller.Env{Client: client, Informers: factory, Log: slog.New(slog.DiscardHandler),
				Recorder: func(string) record.EventRecorder { return record.NewFakeRecorder(10) }})
			if err != nil {
				t.Fatal(err)
			}
			core := factory.Core().V1()
			if err := core.Pods().Informer().GetIndexer().Add(pod); err != nil {
				t.Fatal(err)
			}
			for i := range c.have {
				if err := core.PersistentVolumeClaims().Informer().GetIndexer().Add(&c.have[i]); err != nil {
					t.Fatal(err)
				}
			}
			_, err = loop.Reconciler.Reconcile(context.Background(), "ns/my-app")
			if c.want != "" {
				if err == nil || err.Error() != c.want {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			claim, err := client.CoreV1().PersistentVolumeClaims("ns").Get(context.Background(),
				"my-app-scratch", metav1.GetOptions{})
			if err != nil || !metav1.IsControlledBy(claim, pod) || claim.Labels["type"] != "x" {
				t.Errorf("got %v, %v", claim, err)
			}
		})
	}
}
