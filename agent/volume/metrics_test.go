package volume

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/metrics"
)

// TestVolumesAreCounted: by what makes them, with claims by what is behind them.
func TestVolumesAreCounted(t *testing.T) {
	dir := t.TempDir()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: dir}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data"}
	m := &Manager{
		RootDir:    t.TempDir(),
		mounts:     newWorld(t),
		Claims:     oneVolume{pv},
		Operations: metrics.NewDurations("d", "", []float64{1000}, "plugin", "operation", "status", "migrated"),
		Log:        slog.New(slog.DiscardHandler),
	}
	claim := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{
			{Name: "v", MountPath: "/v"}, {Name: "scratch", MountPath: "/s"}, {Name: "lost", MountPath: "/l"}}}},
		Volumes: []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: claim}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "lost", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: dir + "/none", Type: new(corev1.HostPathDirectory),
			}}},
		},
	}}
	if err := m.Ensure(context.Background(), p); err == nil {
		t.Fatal("a volume that is not there was mounted")
	}
	want := []Number{
		{"kubernetes.io/empty-dir", 1, 1}, {"kubernetes.io/host-path", 1, 1}, {"kubernetes.io/local-volume", 1, 1},
	}
	if diff := cmp.Diff(want, m.Numbers()); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	shown := filepath.Join(m.RootDir, "pods", "u", "volumes", "kubernetes.io~local-volume", pv.Name)
	if diff := cmp.Diff([]Claimed{{"ns", "data", shown}}, m.Claimed()); diff != "" {
		t.Errorf("claimed: -want, +got:\n%s", diff)
	}
	if err := m.Release(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	if got := m.Numbers(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	var out strings.Builder
	page := metrics.NewPage(&out)
	m.Operations.Show(page)
	if err := page.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`d_count{plugin="kubernetes.io/local-volume",operation="volume_mount",status="success",migrated="false"} 1`,
		`d_count{plugin="kubernetes.io/host-path",operation="volume_mount",status="fail-unknown",migrated="false"} 1`,
		`d_count{plugin="kubernetes.io/empty-dir",operation="volume_unmount",status="success",migrated="false"} 1`,
	} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}
