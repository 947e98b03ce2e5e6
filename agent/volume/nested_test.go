package volume

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMountsWithinProjectedVolumes: where containers mount a volume within one that shows
// objects there is a directory for it, which stays when the objects change: removing it
// would unmount the volume in containers that run.
func TestMountsWithinProjectedVolumes(t *testing.T) {
	cm := &corev1.ConfigMap{Data: map[string]string{"a": "1", "key": "1"}}
	m := &Manager{RootDir: t.TempDir(), Objects: objects{configMaps: map[string]*corev1.ConfigMap{"cm": cm}},
		Facts: func(*corev1.Pod) Facts { return Facts{} }, Log: slog.New(slog.DiscardHandler)}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	empty := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "cm", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}},
		{Name: "data", VolumeSource: empty},
		{Name: "file", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: file}}},
	}
	p.Spec.Containers = []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{
		{Name: "data", MountPath: "/etc/app/data"},
		{Name: "data", MountPath: "/etc/app/deep/er"},
		{Name: "data", MountPath: "/etc/app-too"},
		{Name: "data", MountPath: "/etc/app/part", SubPath: "x"},
		{Name: "data", MountPath: "/etc/app/..data/x"},
		{Name: "data", MountPath: "/etc/app/key"},
		{Name: "file", MountPath: "/etc/app/file"},
		{Name: "cm", MountPath: "/etc/app/"},
	}}}
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	dir, err := m.Path(p, "cm")
	if err != nil {
		t.Fatal(err)
	}
	inode := func(name string) uint64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
			t.Fatalf("%s: mode %o, %v", name, st.Mode, err)
		}
		return st.Ino
	}
	// These the runtime makes, as what is mounted may be a file.
	for _, name := range []string{"part", "file"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !os.IsNotExist(err) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"data", "deep/er", "part", "file"}
	before := map[string]uint64{}
	for _, name := range names {
		before[name] = inode(name)
	}
	for range 2 { // with a change, and without
		cm.Data = map[string]string{"a": "2", "data": "a key like a mount"}
		if err := m.Refresh(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if got := inode(name); got != before[name] {
				t.Errorf("%s was made anew", name)
			}
		}
		if got := read(t, dir, "a"); got != "2" {
			t.Errorf("the volume shows %q", got)
		}
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
}
