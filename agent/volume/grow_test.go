package volume

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/host"
)

// localVolume is one of 2Gi behind the claim "data".
func localVolume(path string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: path}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data"}
	return pv
}

// TestLocalGrows: the node brings a local volume to the size that its
// PersistentVolume says it has, and the claim and the pod's events tell of it.
func TestLocalGrows(t *testing.T) {
	const pending = corev1.PersistentVolumeClaimNodeResizePending
	disk, dir := blockDevice(t), t.TempDir()
	const (
		done = `2Gi ["NodeResizeInProgress" ""] [ModifyVolumeError]`
		left = `1Gi [] [FileSystemResizePending ModifyVolumeError]`
		good = `Normal FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume "pv-1" n`
	)
	for _, c := range []struct {
		name, path string
		set        func(w *csiWorld, pv *corev1.PersistentVolume, p *corev1.Pod)
		resized    bool
		claim      string
		event      string
	}{
		{name: "a device's file system", path: disk, resized: true, claim: done, event: good},
		{name: "a directory", path: dir, claim: done, event: good},
		{name: "a device", path: disk, claim: done, event: good,
			set: func(_ *csiWorld, pv *corev1.PersistentVolume, _ *corev1.Pod) {
				pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
			}},
		{name: "read-only", path: disk, claim: left,
			set: func(_ *csiWorld, _ *corev1.PersistentVolume, p *corev1.Pod) {
				p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
			}},
		{name: "not the node's turn", path: disk, claim: left,
			set: func(w *csiWorld, _ *corev1.PersistentVolume, _ *corev1.Pod) {
				w.claim = grows(corev1.PersistentVolumeClaimControllerResizeInProgress)
			}},
		{name: "as large as it was", path: disk, claim: left,
			set: func(w *csiWorld, pv *corev1.PersistentVolume, _ *corev1.Pod) {
				pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("1Gi")
			}},
		{name: "not resized", path: disk, resized: true,
			claim: `1Gi ["NodeResizeInProgress"] [FileSystemResizePending ModifyVolumeError]`,
			event: `Warning VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume "pv-1" : no`,
			set: func(w *csiWorld, _ *corev1.PersistentVolume, _ *corev1.Pod) {
				w.resizeErr = errors.New("no")
			}},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			w := newCSIWorld(t)
			pv, p := localVolume(c.path), csiPod("first", claimed("data"))
			w.claims["data"] = pv
			m := w.agent()
			event := ""
			m.Event = func(_ *corev1.Pod, _, kind, reason, message string) {
				event += kind + " " + reason + " " + message
			}
			w.claim = grows("")
			w.claim.Status.Capacity = w.claim.Spec.Resources.Requests
			if err := m.Ensure(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			w.mu.Lock()
			w.claim = grows(pending)
			w.mu.Unlock()
			if c.set != nil {
				c.set(w, pv, p)
				m.recorded(p.UID, "data").Volume = p.Spec.Volumes[0]
			}
			v := m.recorded(p.UID, "data")
			if c.name == "a device" { // its mode does not change while it is mounted
				if err := m.Release(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				if err := m.Ensure(t.Context(), p); err != nil {
					t.Fatal(err)
				}
			} else {
				if err := m.update(t.Context(), p); err != nil || event != "" {
					t.Errorf("it was looked at a moment ago: %v %s", err, event)
				}
				v.looked = time.Now().Add(-growthEach)
				if err := m.update(t.Context(), p); (err != nil) != (w.resizeErr != nil) {
					t.Error(err)
				}
			}
			if len(w.resized) == 1 != c.resized || c.resized && w.resized[0] != disk {
				t.Errorf("resized %q", w.resized)
			}
			if got := w.shown(); got != c.claim {
				t.Errorf("the claim says  %s\nand has to say %s", got, c.claim)
			}
			if event != c.event {
				t.Errorf("event  %s\nwanted %s", event, c.event)
			}
			if w.resizeErr != nil && !v.looked.IsZero() {
				t.Error("what failed waits for a minute")
			}
			if err := m.Release(t.Context(), p); err != nil {
				t.Error(err)
			}
			w.nothing()
		})
	}
}

// TestLocalGrowsOnTheKernel enlarges a disk under the file system of a pod.
func TestLocalGrowsOnTheKernel(t *testing.T) {
	for _, program := range []string{"mkfs.xfs", "xfs_growfs"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s: install xfsprogs", program)
		}
	}
	device := loopDevice(t)
	name, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "loop/backing_file"))
	if err != nil {
		t.Fatal(err)
	}
	file := strings.TrimSpace(string(name))
	enlarge := func(mebibytes int64) {
		t.Helper()
		if err := os.Truncate(file, mebibytes<<20); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("losetup", "-c", device).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	enlarge(320)
	w := newCSIWorld(t)
	pv, p := localVolume(device), csiPod("first", claimed("data"))
	pv.Spec.Local.FSType = ptr.To("xfs")
	w.claims["data"] = pv
	w.claim = grows("")
	w.claim.Status.Capacity = w.claim.Spec.Resources.Requests
	m := w.agent()
	m.mounts, m.Log = kernel{}, slog.New(slog.DiscardHandler)
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = UnmountUnder(m.RootDir) })
	path, err := m.Path(p, "data")
	if err != nil {
		t.Fatal(err)
	}
	before, err := host.Space(path)
	if err != nil {
		t.Fatal(err)
	}
	enlarge(480)
	w.mu.Lock()
	w.claim = grows(corev1.PersistentVolumeClaimNodeResizePending)
	w.mu.Unlock()
	m.recorded(p.UID, "data").looked = time.Time{}
	if err := m.update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	after, err := host.Space(path)
	if err != nil || after.Bytes < before.Bytes+100<<20 {
		t.Errorf("it has %d bytes and had %d: %v", after.Bytes, before.Bytes, err)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
}
