package volume

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
	want := []string{`first VolumeLost volume "cm"`, `first VolumeLost volume "device"`, `first VolumeLost volume "local"`,
		`first VolumeLost volume "memory"`, `first VolumeLost volume "secret"`}
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
