package source

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// A node that keeps no Secrets keeps the rest, and says why a pod cannot have
// its Secret while the API is away.
func TestWithoutSecrets(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "default", Name: "o", UID: "1", ResourceVersion: "1"}
	client := fake.NewClientset(&corev1.Secret{ObjectMeta: meta}, &corev1.ConfigMap{ObjectMeta: meta})
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", UID: "p"}}
	p.Spec.Volumes = []corev1.Volume{
		{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "o"}}},
		{VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "o"}}}},
	}
	disk := kept{}
	start := func() *Objects {
		o := &Objects{Client: client, Saved: WithoutSecrets{disk}, Log: slog.New(slog.DiscardHandler)}
		o.Start(t.Context())
		o.Track(p)
		return o
	}
	before := start()
	if _, err := before.Secret(t.Context(), "default", "o"); err != nil {
		t.Fatal(err)
	}
	if _, err := before.ConfigMap(t.Context(), "default", "o"); err != nil {
		t.Fatal(err)
	}
	if len(disk) != 1 || disk["configmap_default_o"] == nil {
		t.Fatalf("on the disk: %v", disk)
	}

	silent := errors.New("connection refused")
	client.PrependReactor("list", "*",
		func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, silent })
	after := start()
	if _, err := after.Secret(t.Context(), "default", "o"); !errors.Is(err, silent) || !strings.Contains(err.Error(), "checkpointSecrets is false") {
		t.Errorf("Secret without the API: %v", err)
	}
	if m, err := after.ConfigMap(t.Context(), "default", "o"); err != nil || m.Name != "o" {
		t.Errorf("ConfigMap without the API: %v %v", m, err)
	}
}
