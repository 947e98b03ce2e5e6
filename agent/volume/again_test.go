package volume

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/csi"
)

// A container that starts has its volumes, whatever somebody unmounted or removed on the
// node since they were made: what it writes goes to no other place.
func TestLostVolumesAreMadeAgain(t *testing.T) {
	s := newStory(t)
	m := s.manager()
	var events []string
	m.Event = func(p *corev1.Pod, _, _, reason, message string) {
		name, _, _ := strings.Cut(message, " was ")
		events = append(events, p.Name+" "+reason+" "+name)
	}
	s.try(m.Ensure(t.Context(), s.first))
	s.try(m.Ensure(t.Context(), s.second))
	s.try(m.Again(t.Context(), s.first))
	if len(events) > 0 {
		t.Fatalf("nothing is lost, but events say %q", events)
	}

	whole := maps.Clone(s.mounts)
	removed, err := m.Path(s.first, "cm")
	s.try(err)
	s.try(os.RemoveAll(removed))
	maps.DeleteFunc(s.mounts, func(path, _ string) bool { return !strings.Contains(path, "/u2/") })
	s.try(m.Again(t.Context(), s.first))

	if !maps.Equal(s.mounts, whole) {
		t.Errorf("mounted is\n%v\nwant\n%v", s.mounts, whole)
	}
	if got := read(t, removed, "a"); got != "1" {
		t.Errorf("the ConfigMap shows %q", got)
	}
	slices.Sort(events)
	want := []string{`first VolumeLost volume "cm"`, `first VolumeLost volume "device"`,
		`first VolumeLost volume "local"`, `first VolumeLost volume "memory"`, `first VolumeLost volume "secret"`}
	if !slices.Equal(events, want) {
		t.Errorf("events say\n%q\nwant\n%q", events, want)
	}

	events = nil
	s.try(m.Again(t.Context(), s.second))
	s.try(m.Release(t.Context(), s.first))
	s.try(m.Release(t.Context(), s.second))
	if len(s.mounts) > 0 || len(events) > 0 {
		t.Errorf("at the end there are mounts %v, and events %q", s.mounts, events)
	}
}

// A volume of a storage driver that is lost is staged and published again, and no container
// starts while that fails.
func TestLostVolumeOfADriver(t *testing.T) {
	w := newCSIWorld(t, stages)
	pv := csiVolume("pv-1", corev1.ReadWriteOnce)
	w.claims["data"] = pv
	w.attachedVolume(pv, nil)
	m, p := w.agent(), csiPod("first", claimed("data"))
	staged := filepath.Join(w.root, "kubelet/plugins/kubernetes.io/csi/d", csi.HandleDir("h-pv-1"), "globalmount")
	shown := filepath.Join(w.root, "kubelet/pods/u-first/volumes/kubernetes.io~csi/pv-1/mount")
	try := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var broken atomic.Bool
	check := w.driver.Before
	w.driver.Before = func(ctx context.Context, method, volume string) error {
		at := map[string]string{"NodeStageVolume": staged, "NodePublishVolume": shown}[method]
		if at == shown && broken.Load() {
			return status.Error(codes.Internal, "broken")
		}
		if at != "" {
			w.world.mu.Lock()
			w.mounts[at] = method
			w.world.mu.Unlock()
		}
		return check(ctx, method, volume)
	}
	try(m.Ensure(t.Context(), p))
	try(m.Again(t.Context(), p))
	w.driver.Calls()

	clear(w.mounts)
	broken.Store(true)
	for range 2 {
		if err := m.Again(t.Context(), p); err == nil || !strings.Contains(err.Error(), "broken") {
			t.Fatalf("the container starts without its volume: %v", err)
		}
	}
	broken.Store(false)
	try(m.Again(t.Context(), p))
	if w.mounts[staged] == "" || w.mounts[shown] == "" {
		t.Errorf("mounted are %v, called were %q", w.mounts, w.driver.Calls())
	}
	clear(w.mounts)
	try(m.Release(t.Context(), p))
	w.nothing()
}
