package evict

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is what the collection of images needs of the CRI.
type Runtime interface {
	ListContainers(ctx context.Context, filter *criv1.ContainerFilter) ([]*criv1.Container, error)
}

// ImageStore is the CRI's service of images.
type ImageStore interface {
	ListImages(ctx context.Context, filter *criv1.ImageFilter) ([]*criv1.Image, error)
	ImageStatus(ctx context.Context, image *criv1.ImageSpec, verbose bool) (*criv1.ImageStatusResponse, error)
	RemoveImage(ctx context.Context, image *criv1.ImageSpec) error
}

// ImagePolicy says when images are deleted that no container uses (GC-12..14).
type ImagePolicy struct {
	// High is the use of the disk, in percent, from which images are deleted, the one
	// first that was used last the longest ago, until it is Low. 100: never for that.
	High, Low int
	// MinAge is how long an image is kept since it was seen first, MaxAge since it was
	// used last; 0: for ever.
	MinAge, MaxAge time.Duration
}

// Images deletes images that nobody uses. Pinned ones stay.
type Images struct {
	ImagePolicy
	Store   ImageStore
	Runtime Runtime
	// Leftovers removes what pulls left that did not become an image, before images go; nil:
	// the runtime does it itself.
	Leftovers func(ctx context.Context) error
	// Pods are those whose images are in use before and after their containers.
	Pods func() []*corev1.Pod
	// Space is that of the disk of images, in bytes.
	Space func() (Signal, error)
	// Tell writes a warning event of the node.
	Tell   func(reason, message string)
	Period time.Duration
	Log    *slog.Logger

	mu    sync.Mutex
	begun time.Time
	seen  map[string]*sighting
}

type sighting struct {
	first, used time.Time
	size        int64
}

// Run looks at the disk of images until ctx ends.
func (m *Images) Run(ctx context.Context) error {
	failed := false
	for {
		err := m.collect(ctx, time.Now())
		if err != nil && ctx.Err() == nil && !failed {
			m.Log.Warn("images are not deleted", "err", err)
			m.Tell("ImageGCFailed", err.Error())
		}
		failed = err != nil
		timer := time.NewTimer(m.Period)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C: // neither disks nor images' ages have events
		}
	}
}

// collect deletes what is too old, and what fills the disk.
func (m *Images) collect(ctx context.Context, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	unused, err := m.look(ctx, now)
	if err != nil {
		return err
	}
	// How long an image was not used before the agent began, nobody knows.
	if m.MaxAge > 0 && now.Sub(m.begun) > m.MaxAge {
		var old []string
		for _, id := range unused {
			if now.Sub(m.seen[id].used) > m.MaxAge {
				old = append(old, id)
			}
		}
		if _, err := m.remove(ctx, old, -1); err != nil {
			return err
		}
		unused = slices.DeleteFunc(unused, func(id string) bool { return slices.Contains(old, id) })
	}
	space, percent, full, err := m.full()
	if err == nil && full && m.Leftovers != nil {
		if err = m.Leftovers(ctx); err == nil {
			space, percent, full, err = m.full()
		}
	}
	if err != nil || !full {
		return err
	}
	want := space.Capacity*int64(100-m.Low)/100 - space.Available
	freed, err := m.remove(ctx, m.oldEnough(unused, now), want)
	m.Log.Info("unused images were deleted", "disk used, percent", percent, "freed", freed, "wanted", want)
	if err == nil && freed < want {
		// Upstream's words, by which others look for it.
		err = fmt.Errorf("Insufficient free disk space on the node's image filesystem (%d%% of %s used). "+
			"Failed to free sufficient space by deleting unused images (freed %d bytes). "+
			"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
			percent, size(space.Capacity), freed)
		m.Tell("FreeDiskSpaceFailed", err.Error())
	}
	return err
}

// size is a number of bytes as people read it.
func size(bytes int64) string {
	if bytes < 1<<10 {
		return fmt.Sprintf("%d B", bytes)
	}
	n, unit := float64(bytes)/(1<<10), 0
	for ; n >= 1<<10 && unit < 3; unit++ {
		n /= 1 << 10
	}
	return fmt.Sprintf("%.1f %ciB", n, "KMGT"[unit])
}

// full tells whether the disk of images is so full that some are deleted.
func (m *Images) full() (space Signal, percent int, yes bool, err error) {
	space, err = m.Space()
	if err != nil || space.Capacity <= 0 {
		return space, 0, false, err
	}
	percent = 100 - int(space.Available*100/space.Capacity)
	return space, percent, m.High < 100 && percent >= m.High, nil
}

// DeleteUnused deletes all images that nobody uses, and what is left of pulls.
func (m *Images) DeleteUnused(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Leftovers != nil {
		if err := m.Leftovers(ctx); err != nil {
			m.Log.Warn("what pulls left stays", "err", err)
		}
	}
	now := time.Now()
	unused, err := m.look(ctx, now)
	if err != nil {
		return err
	}
	_, err = m.remove(ctx, m.oldEnough(unused, now), -1)
	return err
}

func (m *Images) oldEnough(ids []string, now time.Time) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return now.Sub(m.seen[id].first) < m.MinAge })
}

// look returns the images that nobody uses, in the order in which they may go.
func (m *Images) look(ctx context.Context, now time.Time) ([]string, error) {
	list, err := m.Store.ListImages(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	inUse, err := m.inUse(ctx)
	if err != nil {
		return nil, err
	}
	if m.begun.IsZero() {
		m.begun = now
	}
	seen := map[string]*sighting{}
	var unused []string
	for _, i := range list {
		s := m.seen[i.Id]
		if s == nil {
			s = &sighting{first: now, used: now}
		}
		s.size = int64(i.Size)
		seen[i.Id] = s
		if inUse[i.Id] || slices.ContainsFunc(append(i.RepoTags, i.RepoDigests...), func(n string) bool { return inUse[n] }) {
			s.used = now
		} else if !i.Pinned {
			unused = append(unused, i.Id)
		}
	}
	m.seen = seen
	slices.SortFunc(unused, func(a, b string) int {
		x, y := seen[a], seen[b]
		return cmp.Or(x.used.Compare(y.used), x.first.Compare(y.first), cmp.Compare(a, b))
	})
	return unused, nil
}

// inUse are the images of containers, ended ones too, and of pods that may start some.
func (m *Images) inUse(ctx context.Context) (map[string]bool, error) {
	containers, err := m.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	out := map[string]bool{}
	for _, c := range containers {
		out[c.ImageRef], out[c.ImageId], out[c.GetImage().GetImage()] = true, true, true
	}
	named := map[string]bool{}
	for _, p := range m.Pods() {
		for i := range p.Spec.Volumes {
			if v := p.Spec.Volumes[i].Image; v != nil {
				named[v.Reference] = true
			}
		}
		for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				named[list[i].Image] = true
			}
		}
	}
	for name := range named {
		status, err := m.Store.ImageStatus(ctx, &criv1.ImageSpec{Image: name}, false)
		if err == nil && status.GetImage() != nil {
			out[status.Image.Id] = true
		}
	}
	delete(out, "")
	return out, nil
}

// remove deletes images until it has freed so many bytes; negative: all.
func (m *Images) remove(ctx context.Context, ids []string, want int64) (freed int64, err error) {
	var errs []error
	for _, id := range ids {
		if want >= 0 && freed >= want || ctx.Err() != nil {
			break
		}
		if err := m.Store.RemoveImage(ctx, &criv1.ImageSpec{Image: id}); err != nil {
			errs = append(errs, fmt.Errorf("delete image %s: %w", id, err))
			continue
		}
		freed += m.seen[id].size
		delete(m.seen, id)
		m.Log.Info("deleted an image that nobody uses", "image", id)
	}
	return freed, errors.Join(errs...)
}
