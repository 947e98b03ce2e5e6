package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// story is a life of two pods, of which both have the device.
type story struct {
	*world
	first, second *corev1.Pod
	node, local   string // directories that outlive pods
}

func newStory(t *testing.T) *story {
	s := &story{world: newWorld(t), node: t.TempDir(), local: t.TempDir()}
	pv := func(name string, src corev1.PersistentVolumeSource) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PersistentVolumeSpec{PersistentVolumeSource: src},
		}
	}
	s.claims["device"] = pv("disk-1", corev1.PersistentVolumeSource{
		CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}})
	s.claims["local"] = pv("local-1", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: s.local}})
	configMap := corev1.Volume{Name: "cm", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}}
	s.first = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "first", UID: "u1"}}
	s.first.Spec.Volumes = []corev1.Volume{
		{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			SizeLimit: ptr.To(resource.MustParse("1Mi"))}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMediumMemory}}},
		configMap,
		{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}},
		{Name: "node", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: s.node}}},
		claimed("local"),
		claimed("device"),
	}
	s.second = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "second", UID: "u2"}}
	s.second.Spec.Volumes = []corev1.Volume{claimed("device"), configMap}
	for _, dir := range []string{s.node, s.local} {
		if err := os.WriteFile(filepath.Join(dir, "kept"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// play lets both pods live and end, the first first. It returns those that
// shall be there, which is all that remains if the agent is killed on its way.
func (s *story) play(m *Manager) (wanted []*corev1.Pod, over bool) {
	over = s.survive(func() {
		wanted = []*corev1.Pod{s.first}
		s.try(m.Ensure(s.t.Context(), s.first))
		path, err := m.Path(s.first, "disk")
		s.try(errors.Join(err, os.WriteFile(filepath.Join(path, "written"), nil, 0o600), os.Chmod(path, 0o700)))
		_, err = m.SubPath(s.first, SubPath{Volume: "disk", Container: "c", Path: "part"})
		s.try(err)
		wanted = []*corev1.Pod{s.first, s.second}
		s.try(m.Ensure(s.t.Context(), s.second))
		wanted = []*corev1.Pod{s.second}
		s.try(m.Release(s.t.Context(), s.first))
		wanted = nil
		s.try(m.Release(s.t.Context(), s.second))
	})
	return wanted, over
}

func (s *story) try(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Error(err)
	}
}

// whole tells what of a pod's volumes is not as it should be.
func (s *story) whole(m *Manager, p *corev1.Pod) (missing []string) {
	for name, want := range map[string]string{"cm": "a", "secret": "k", "node": "kept", "local": "kept"} {
		path, err := m.Path(p, name)
		if err == nil {
			_, err = os.Stat(filepath.Join(path, want))
		}
		if err != nil && p == s.first {
			missing = append(missing, err.Error())
		}
	}
	if v := m.recorded(p.UID, "disk"); p == s.first && s.limits[v.Project] != 1<<20+1<<14+4<<20 {
		missing = append(missing, fmt.Sprintf("limit of project %d: %v", v.Project, s.limits))
	}
	for _, name := range []string{"memory", "secret", "device"} {
		path, err := m.Path(p, name)
		if (err != nil || s.mounts[path] == "") && (p == s.first || name == "device") {
			missing = append(missing, fmt.Sprintf("%s: %q %v", name, s.mounts[path], err))
		}
	}
	return missing
}

// nothing checks that all is undone, and nothing more than that.
func (s *story) nothing() {
	s.t.Helper()
	if got := s.String() + s.world.records(); got != "" {
		s.t.Errorf("mounts and records are left:\n%s", got)
	}
	if left, _ := filepath.Glob(filepath.Join(s.root, "kubelet/pods/*/*")); len(left) > 0 {
		s.t.Errorf("left: %q", left)
	}
	if len(s.limits) > 0 {
		s.t.Errorf("limits are left: %v", s.limits)
	}
	for _, dir := range []string{s.node, s.local} {
		if _, err := os.Stat(filepath.Join(dir, "kept")); err != nil {
			s.t.Errorf("what outlives pods: %v", err)
		}
	}
}

// TestKilledAtEveryStep: wherever an agent is killed, no mount is unknown; the
// next one, also after a reboot, makes whole what is wanted and undoes the rest.
func TestKilledAtEveryStep(t *testing.T) {
	for _, c := range []struct {
		name  string
		after func(*story)
		next  func(*story, []*corev1.Pod)
	}{
		{"restart", func(*story) {}, (*story).goOn},
		{"reboot", func(s *story) { s.reboot() }, (*story).goOn},
		{"restart-records-alone", func(s *story) { s.silent = true }, (*story).undoAll},
		{"reboot-records-alone", func(s *story) { s.reboot(); s.silent = true }, (*story).undoAll},
	} {
		t.Run(c.name, func(t *testing.T) {
			for kill := 0; ; kill++ {
				s := newStory(t)
				s.left = kill
				wanted, over := s.play(s.manager())
				if over && kill < 30 {
					t.Errorf("the story has %d effects only", kill)
				}
				if over {
					s.nothing()
					return
				}
				if unknown := s.unknown(); len(unknown) > 0 {
					t.Errorf("killed before effect %d: nobody knows of %q", kill, unknown)
				}
				s.left = -1
				c.after(s)
				c.next(s, wanted)
				s.nothing()
				if t.Failed() {
					t.Fatalf("killed before effect %d", kill)
				}
			}
		})
	}
}

// goOn is an agent that knows which pods are wanted.
func (s *story) goOn(wanted []*corev1.Pod) {
	s.t.Helper()
	m := s.manager()
	disk := filepath.Join(m.podDir(s.first.UID), "volumes/kubernetes.io~empty-dir/disk")
	_, before := os.Lstat(filepath.Join(disk, "written"))
	s.try(m.Restore(nil))
	for _, p := range wanted {
		s.try(m.Ensure(s.t.Context(), p))
		if missing := s.whole(m, p); len(missing) > 0 {
			s.t.Errorf("%s is not whole: %q", p.Name, missing)
		}
	}
	if len(wanted) > 0 && wanted[0] == s.first {
		mode, written := fs.FileMode(0o777), before == nil
		if written {
			mode = 0o700 // the pod's own choice
		}
		st, err := os.Stat(disk)
		_, after := os.Lstat(filepath.Join(disk, "written"))
		if err != nil || st.Mode().Perm() != mode || (after == nil) != written {
			s.t.Errorf("emptyDir: %v %v, written before: %v, after: %v", st, err, before, after)
		}
	}
	s.try(m.Release(s.t.Context(), s.first))
	s.try(m.Release(s.t.Context(), s.second))
	s.removeDirs()
}

// undoAll is an agent that has the records of volumes and nothing else: no API,
// no pod.
func (s *story) undoAll([]*corev1.Pod) {
	s.t.Helper()
	m := s.manager()
	s.try(m.Restore(nil))
	for _, p := range m.Pods() {
		if len(p.Spec.Volumes) > 0 || p.Namespace != "ns" || p.Name == "" {
			s.t.Errorf("a pod that nobody named: %v", p)
		}
		s.try(m.Release(s.t.Context(), p))
	}
	s.removeDirs()
}

// removeDirs removes what the pods' own directories are made of, and what is
// empty only.
func (s *story) removeDirs() {
	for _, p := range []*corev1.Pod{s.first, s.second} {
		_ = os.Remove(filepath.Join(s.root, "kubelet/pods", string(p.UID)))
	}
}

// TestWithoutRecords: an agent that follows one without records knows of the
// volumes of pods that run, before the API answers, and touches none.
func TestWithoutRecords(t *testing.T) {
	s := newStory(t)
	before := s.manager()
	before.Records = nil
	s.try(errors.Join(before.Ensure(t.Context(), s.first), before.Ensure(t.Context(), s.second)))
	mounts, effects := s.String(), s.effects
	clear(s.limits) // such an agent set none
	s.silent = true
	m := s.manager()
	s.try(m.Restore([]*corev1.Pod{s.first, s.second}))
	for _, v := range s.first.Spec.Volumes {
		was, err := before.Path(s.first, v.Name)
		is, nowErr := m.Path(s.first, v.Name)
		if is != was || errors.Join(err, nowErr) != nil {
			t.Errorf("%s was at %q and is at %q: %v, %v", v.Name, was, is, err, nowErr)
		}
	}
	n := len(s.first.Spec.Volumes) + len(s.second.Spec.Volumes)
	if records := s.world.records(); s.effects != effects+n || strings.Count(records, "\n") != n {
		t.Errorf("%d effects for %d volumes, records:\n%s", s.effects-effects, n, records)
	}
	if s.String() != mounts {
		t.Errorf("mounts were\n%sand are\n%s", mounts, s)
	}
	s.undoAll(nil)
	s.nothing()
}

// TestNothingWithoutRecord: what cannot be recorded is not made.
func TestNothingWithoutRecord(t *testing.T) {
	s := newStory(t)
	m := s.manager()
	m.Records = fullDisk{m.Records}
	want := `MountVolume.SetUp failed for volume "disk" : no space left on device`
	if got := errText(m.Ensure(t.Context(), s.first)); got != want {
		t.Errorf("got %s", got)
	}
	s.nothing()
}

// TestAnotherVolume: what was made of a claim's volume is undone before that
// of another is made in its place.
func TestAnotherVolume(t *testing.T) {
	s := newStory(t)
	m := s.manager()
	s.try(m.Ensure(t.Context(), s.second))
	again := func() int {
		before := s.effects
		s.try(m.Ensure(t.Context(), s.second))
		return s.effects - before
	}
	same := again()
	s.claims["device"].Labels = map[string]string{"changed": "yes"}
	if label := again(); label != same {
		t.Errorf("a label has %d effects, nothing has %d", label, same)
	}
	other := s.claims["device"].DeepCopy()
	other.Name, other.Spec.CSI.VolumeHandle = "disk-2", "h2"
	s.claims["device"] = other
	s.try(m.Ensure(t.Context(), s.second))
	if got := s.String(); strings.Contains(got, "node/h\n") || !strings.Contains(got, "node/h2") {
		t.Errorf("mounts:\n%s", got)
	}
	s.try(m.Release(t.Context(), s.second))
	s.removeDirs()
	s.nothing()
}

// TestStagedOnce: pods that come and go at the same time share what is staged;
// none loses it while it has it.
func TestStagedOnce(t *testing.T) {
	s := newStory(t)
	m := s.manager()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			p := s.second.DeepCopy()
			p.UID = types.UID(fmt.Sprint("u", i))
			for range 25 {
				if err := errors.Join(m.Ensure(t.Context(), p), m.Release(t.Context(), p)); err != nil {
					t.Error(err)
				}
			}
			_ = os.Remove(m.podDir(p.UID))
		})
	}
	all.Wait()
	s.nothing()
}

// TestTwoNames: a driver's volume that is two PersistentVolumes is unstaged after the
// last pod of either.
func TestTwoNames(t *testing.T) {
	s := newStory(t)
	s.claims["twin"] = s.claims["device"].DeepCopy()
	s.claims["twin"].Name = "disk-2"
	s.second.Spec.Volumes = []corev1.Volume{claimed("twin")}
	m := s.manager()
	s.try(m.Ensure(t.Context(), s.first))
	s.try(m.Ensure(t.Context(), s.second))
	s.try(m.Release(t.Context(), s.first))
	if got := s.String(); !strings.Contains(got, "node/h device") || !strings.Contains(got, "twin node/h") {
		t.Errorf("mounts while the second pod lives:\n%s", got)
	}
	s.try(m.Release(t.Context(), s.second))
	if got := s.String(); got != "" {
		t.Errorf("mounts afterwards:\n%s", got)
	}
}
