package volume

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/quota"
	"github.com/shoal-project/shoal/csi/btrfs"
	"github.com/shoal-project/shoal/csi/btrfs/btrfstest"
)

// projectQuotas are those of an agent on a file system with project quotas: limits are
// the world's, what was given is the agent's.
type projectQuotas struct {
	w     *world
	taken map[uint32]bool
}

// Take implements Quotas.
func (q *projectQuotas) Take(project uint32) (uint32, error) {
	for project == 0 || q.taken[project] {
		if project++; q.w.limits[project] != 0 {
			continue
		}
	}
	q.taken[project] = true
	return project, nil
}

// Give implements Quotas.
func (q *projectQuotas) Give(project uint32) { delete(q.taken, project) }

// Mkdir implements Quotas.
func (q *projectQuotas) Mkdir(path string, project uint32, bytes int64) error {
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	q.w.effect()
	q.w.limits[project] = bytes
	q.w.effect()
	return os.Mkdir(path, 0o700)
}

// Used implements Quotas.
func (q *projectQuotas) Used(string, uint32, bool) (quota.Usage, error) {
	return quota.Usage{}, quota.ErrNone
}

// Remove implements Quotas.
func (q *projectQuotas) Remove(path string, project uint32) error {
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	q.w.effect()
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	q.w.effect()
	delete(q.w.limits, project)
	return nil
}

func limitedPod(limit string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u1"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse(limit))}}}}
	return p
}

func TestHardLimit(t *testing.T) {
	for limit, want := range map[string]int64{"0": 0, "-1": 0, "64Mi": 69 << 20, "1": 1 + 4<<20, "8Ei": 0} {
		p := limitedPod(limit)
		if got := hardLimit(&Volume{Source: Source{Volume: p.Spec.Volumes[0]}}); got != want {
			t.Errorf("%s: got %d, want %d", limit, got, want)
		}
	}
	p := limitedPod("1Mi")
	p.Spec.Volumes[0].EmptyDir.Medium = corev1.StorageMediumMemory
	if got := hardLimit(&Volume{Source: Source{Volume: p.Spec.Volumes[0]}}); got != 0 {
		t.Errorf("in memory: got %d", got)
	}
}

// onBtrfs is a manager whose pods are on btrfs with simple quotas.
func onBtrfs(t *testing.T) *Manager {
	t.Helper()
	root := btrfstest.Disk(t, 512<<20)
	if !btrfs.KernelHasSimple() {
		t.Skip("the kernel has no simple quotas (Linux 6.7)")
	}
	f, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if disk, why, err := quota.Open(root); err != nil || disk != nil || why == "" {
		t.Errorf("without quotas: %v %q %v", disk, why, err)
	}
	if err := btrfs.Enable(f); err != nil {
		t.Fatal(err)
	}
	disk, why, err := quota.Open(root)
	if err != nil || disk == nil {
		t.Fatal(why, err)
	}
	return &Manager{RootDir: root, Quotas: disk, Log: slog.New(slog.DiscardHandler)}
}

// TestEmptyDirIsLimited has a container write more than it may: the kernel ends it, and
// tells how much there is.
func TestEmptyDirIsLimited(t *testing.T) {
	m := onBtrfs(t)
	p := limitedPod("32Mi")
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	dir, err := m.Path(p, "disk")
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o777 {
		t.Error(st.Mode(), err)
	}
	write := func(name string, size int) error {
		return os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600)
	}
	if err := write("allowed", 32<<20); err != nil {
		t.Error("as much as is allowed:", err)
	}
	if err := write("more", 16<<20); !errors.Is(err, unix.EDQUOT) {
		t.Error("more than that:", err)
	}
	if got, ok := m.Used(p, "disk"); !ok || got < 32<<20 || got > 40<<20 {
		t.Error(got, ok)
	}
	if err := os.Remove(filepath.Join(dir, "more")); err != nil {
		t.Fatal(err)
	}
	unix.Sync()
	if err := btrfstest.Stray(filepath.Join(dir, "stray")); err != nil {
		t.Fatal(err)
	}
	if err := write("stray/f", 64<<20); err != nil {
		t.Log("the kernel counts what names its groups:", err)
	}
	unix.Sync()
	if got, ok := m.Used(p, "disk"); !ok || got < 32<<20 {
		t.Error(got, ok)
	}
	if err := write("again", 16<<20); !errors.Is(err, unix.EDQUOT) {
		t.Error("beside a subvolume outside of all groups:", err)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error("left:", err)
	}
}

// TestEmptyDirWithoutQuota starts where the quotas that were there are gone.
func TestEmptyDirWithoutQuota(t *testing.T) {
	m := onBtrfs(t)
	m.RootDir = t.TempDir() // no btrfs
	p := limitedPod("32Mi")
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if got, ok := m.Used(p, "disk"); ok {
		t.Errorf("nobody counts, and it has %d bytes", got)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}
