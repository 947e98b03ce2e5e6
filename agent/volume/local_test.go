package volume

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestLocalDevice has a local volume that is a device, with a file system: it is
// mounted once for two pods, and until the last of them goes.
func TestLocalDevice(t *testing.T) {
	w := newWorld(t)
	disk := blockDevice(t)
	root := t.TempDir()
	m := &Manager{RootDir: root, mounts: w, Claims: oneVolume{&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: corev1.PersistentVolumeSpec{
			MountOptions: []string{"noatime"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: disk, FSType: ptr.To("xfs")}},
		},
	}}, Log: slog.New(slog.DiscardHandler)}
	device := filepath.Join(root, "plugins", "kubernetes.io", "local-volume", "mounts", "pv")
	pod := func(name string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}}
		p.UID = "uid-1"
		if name == "b" {
			p.UID = "uid-2"
		}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		return p
	}
	for _, name := range []string{"a", "b"} {
		if err := m.Ensure(context.Background(), pod(name)); err != nil {
			t.Fatal(err)
		}
		path, err := m.Path(pod(name), "v")
		if err != nil || w.mounts[path] != "none "+device+" [bind noatime]" {
			t.Errorf("pod %s has %q at %q, %v", name, w.mounts[path], path, err)
		}
	}
	if want := "xfs " + disk + " [noatime]"; w.mounts[device] != want {
		t.Errorf("the device is mounted as %q, want %q", w.mounts[device], want)
	}
	if err := m.Release(context.Background(), pod("a")); err != nil {
		t.Fatal(err)
	}
	if w.mounts[device] == "" {
		t.Error("the device went with the first pod")
	}
	if err := m.Release(context.Background(), pod("b")); err != nil {
		t.Fatal(err)
	}
	if len(w.mounts) > 0 {
		t.Errorf("left: %v", w.mounts)
	}
	if _, err := os.Lstat(disk); err != nil {
		t.Errorf("the device's file: %v", err)
	}
}
