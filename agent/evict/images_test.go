package evict

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// shelf is a runtime's images, of ten bytes each on a disk of a hundred.
type shelf struct {
	sync.Mutex
	told       []string
	images     []*criv1.Image
	containers []*criv1.Container
	others     int64 // bytes that are not images'
	stuck      bool
}

func (s *shelf) add(id string, pinned bool) {
	s.images = append(s.images, &criv1.Image{Id: id, RepoTags: []string{id + ":latest"}, Size: 10, Pinned: pinned})
}

func (s *shelf) ids() string {
	var out []string
	for _, i := range s.images {
		out = append(out, i.Id)
	}
	return strings.Join(out, " ")
}

func (s *shelf) ListImages(context.Context, *criv1.ImageFilter) ([]*criv1.Image, error) {
	s.Lock()
	defer s.Unlock()
	return slices.Clone(s.images), nil
}

func (s *shelf) ImageStatus(_ context.Context, spec *criv1.ImageSpec, _ bool) (*criv1.ImageStatusResponse, error) {
	s.Lock()
	defer s.Unlock()
	for _, i := range s.images {
		if slices.Contains(i.RepoTags, spec.Image) {
			return &criv1.ImageStatusResponse{Image: i}, nil
		}
	}
	return &criv1.ImageStatusResponse{}, nil
}

func (s *shelf) RemoveImage(_ context.Context, spec *criv1.ImageSpec) error {
	s.Lock()
	defer s.Unlock()
	if s.stuck {
		return errors.New("stuck")
	}
	s.images = slices.DeleteFunc(s.images, func(i *criv1.Image) bool { return i.Id == spec.Image })
	return nil
}

func (s *shelf) ListContainers(context.Context, *criv1.ContainerFilter) ([]*criv1.Container, error) {
	s.Lock()
	defer s.Unlock()
	return s.containers, nil
}

func (s *shelf) space() (Signal, error) {
	s.Lock()
	defer s.Unlock()
	return Signal{Available: 100 - s.others - 10*int64(len(s.images)), Capacity: 100}, nil
}

// Images go when the disk is full, the one used the longest ago first, and when nobody
// used them for long; never those in use, pinned or young (GC-12..14).
func TestImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		for _, id := range []string{"pinned", "container", "volume", "starting", "b", "a"} {
			s.add(id, id == "pinned")
		}
		s.containers = []*criv1.Container{{ImageId: "container"}}
		starting := &corev1.Pod{}
		starting.Spec.Containers = []corev1.Container{{Image: "starting:latest"}}
		starting.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			Image: &corev1.ImageVolumeSource{Reference: "volume:latest"}}}}
		m := &Images{
			ImagePolicy: ImagePolicy{High: 85, Low: 65, MinAge: 2 * time.Minute, MaxAge: time.Hour},
			Store:       s, Runtime: s,
			Pods: func() []*corev1.Pod {
				s.Lock()
				defer s.Unlock()
				return []*corev1.Pod{starting.DeepCopy()}
			}, Space: s.space,
			Tell: func(reason, message string) {
				s.Lock()
				defer s.Unlock()
				s.told = append(s.told, reason+": "+message)
			},
			Period: 5 * time.Minute, Log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		go m.Run(ctx)
		sleep := func(d time.Duration) { // the test holds the lock but while it sleeps
			s.Unlock()
			time.Sleep(d)
			synctest.Wait()
			s.Lock()
		}
		unused := func() {
			s.Unlock()
			defer s.Lock()
			if err := m.DeleteUnused(ctx); err != nil {
				t.Error(err)
			}
		}
		s.Lock()
		sleep(time.Second)
		at := func(minute int, want string) {
			t.Helper()
			if got := s.ids(); got != want || len(s.told) > 0 {
				t.Errorf("minute %d: %s, want %s; told %q", minute, got, want, s.told)
			}
		}
		at(0, "pinned container volume starting b a")
		sleep(6 * time.Minute)
		at(6, "pinned container volume starting b a") // 60 %
		s.containers = append(s.containers, &criv1.Container{Image: &criv1.ImageSpec{Image: "a"}})
		sleep(5 * time.Minute)
		s.containers = s.containers[:1]
		s.others = 25 // 85 %, so that 20 are to be freed
		s.add("young", false)
		s.others -= 10
		sleep(5 * time.Minute) // b was used before a; young came after the last look
		at(16, "pinned container volume starting young")

		s.others = 60
		s.stuck = true
		sleep(5 * time.Minute)
		if len(s.told) != 1 || !strings.HasPrefix(s.told[0], "ImageGCFailed: delete image young: stuck") {
			t.Errorf("told %q", s.told)
		}
		s.told, s.stuck = nil, false
		sleep(5 * time.Minute)
		if len(s.told) != 1 || s.ids() != "pinned container volume starting" ||
			s.told[0] != "FreeDiskSpaceFailed: Insufficient free disk space on the node's image filesystem (110% of 100 B used). "+
				"Failed to free sufficient space by deleting unused images (freed 10 bytes). "+
				"Investigate disk usage, as it could be used by active images, logs, volumes, or other data." {
			t.Errorf("%s; told %q", s.ids(), s.told)
		}
		s.told, s.others = nil, 0
		s.add("old", false)
		sleep(30 * time.Minute)
		at(60, "pinned container volume starting old")
		starting.Spec.Volumes = nil
		sleep(70 * time.Minute)
		at(130, "pinned container starting")

		s.add("new", false)
		unused()
		at(130, "pinned container starting new")
		sleep(3 * time.Minute)
		unused()
		at(133, "pinned container starting")
		s.Unlock()
		cancel()
		synctest.Wait()
	})
}

// TestLeftovers: what pulls left goes before images do, and without any that is unused.
func TestLeftovers(t *testing.T) {
	s := &shelf{others: 70}
	s.add("unused", false)
	s.add("young", false)
	m := &Images{
		ImagePolicy: ImagePolicy{High: 85, Low: 65},
		Store:       s, Runtime: s, Pods: func() []*corev1.Pod { return nil }, Space: s.space,
		Leftovers: func(context.Context) error {
			s.others = 10
			return nil
		},
		Tell: func(string, string) {}, Log: slog.New(slog.DiscardHandler)}
	if err := m.collect(t.Context(), time.Now()); err != nil || s.ids() != "unused young" || s.others != 10 {
		t.Errorf("there are %s and %d of others, %v", s.ids(), s.others, err)
	}
	m.MinAge, s.others = time.Hour, 20
	if err := m.DeleteUnused(t.Context()); err != nil || s.ids() != "unused young" || s.others != 10 {
		t.Errorf("under pressure there are %s and %d of others, %v", s.ids(), s.others, err)
	}
}

func TestSizeAsPeopleReadIt(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 3 << 19: "1.5 MiB", 100 << 30: "100.0 GiB", 5 << 50: "5120.0 TiB",
	} {
		if got := size(bytes); got != want {
			t.Errorf("%d: %s, want %s", bytes, got, want)
		}
	}
}
