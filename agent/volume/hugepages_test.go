package volume

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// asking is a pod whose containers ask for huge pages, each of one size.
func asking(sizes ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	for _, size := range sizes {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceName("hugepages-" + size): resource.MustParse("1Gi")}}})
	}
	return p
}

func TestPageSize(t *testing.T) {
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		medium corev1.StorageMedium
		want   int64
		fault  string
	}{
		{"asked", asking("2Mi"), "HugePages", 2 << 20, ""},
		{"asked_twice", asking("2Mi", "2Mi"), "HugePages", 2 << 20, ""},
		{"named", asking("2Mi", "1Gi"), "HugePages-1Gi", 1 << 30, ""},
		{"several", asking("2Mi", "1Gi"), "HugePages", 0,
			"medium: HugePages can't be used if container requests multiple huge page sizes"},
		{"none", asking(), "HugePages", 0,
			"medium HugePages: hugePages storage requested, but there is no resource request for huge pages"},
		{"another", asking("2Mi"), "HugePages-1Gi", 0, "no container asks for hugepages-1Gi"},
		{"nonsense", asking("2Mi"), "HugePages-x", 0, "HugePages-x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := pageSize(c.pod, c.medium)
			if c.fault == "" && (err != nil || got != c.want) {
				t.Errorf("%d, %v, want %d", got, err, c.want)
			}
			if c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)) {
				t.Errorf("%v, want %q", err, c.fault)
			}
		})
	}
}

// TestHugePages: an emptyDir of huge pages is a file system of them.
func TestHugePages(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
	if _, err := os.Stat("/sys/kernel/mm/hugepages/hugepages-2048kB"); err != nil {
		t.Skip("the kernel has no huge pages of 2 MiB")
	}
	m := &Manager{RootDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	t.Cleanup(func() {
		if err := UnmountUnder(m.RootDir); err != nil {
			t.Error(err)
		}
	})
	p := asking("2Mi")
	p.Spec.Volumes = []corev1.Volume{{Name: "huge", VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumHugePages}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "huge", MountPath: "/huge"}}
	for range 2 { // repeatable
		if err := m.Ensure(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	path, err := m.Path(p, "huge")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	if err != nil || len(mounts) != 1 || mounts[0].FSType != "hugetlbfs" ||
		!strings.Contains(mounts[0].VFSOptions, "pagesize=2M") {
		t.Errorf("mounted: %+v, %v", mounts, err)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(path); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
