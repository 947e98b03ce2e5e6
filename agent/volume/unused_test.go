package volume

import (
	"log/slog"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestUnusedVolumes: a volume that no container has is not made, so that its object need not
// be there. It is made when a container comes that has it.
func TestUnusedVolumes(t *testing.T) {
	objs := objects{secrets: map[string]*corev1.Secret{}}
	m := &Manager{RootDir: t.TempDir(), Objects: objs, Facts: func(*corev1.Pod) Facts { return Facts{} },
		mounts: newWorld(t), Log: slog.New(slog.DiscardHandler)}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "unused", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}},
		{Name: "used", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	p.Spec.Containers = []corev1.Container{
		{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "used", MountPath: "/u"}}}}
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := m.Again(t.Context(), p); err != nil {
		t.Error(err)
	}
	if _, err := m.Path(p, "unused"); err == nil {
		t.Error("it was made")
	}
	objs.secrets["s"] = &corev1.Secret{Data: map[string][]byte{"k": []byte("v")}}
	p = p.DeepCopy()
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debugger", VolumeMounts: []corev1.VolumeMount{{Name: "unused", MountPath: "/s"}}}}}
	if err := m.Again(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	dir, err := m.Path(p, "unused")
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, dir, "k"); got != "v" {
		t.Errorf("it shows %q", got)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("it is left: %v", err)
	}
}
