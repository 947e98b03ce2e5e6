package image

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Pulling is how far a pull is.
type Pulling struct {
	Image string    `json:"image"`
	Since time.Time `json:"since"`
	// Waiting: others are pulled first.
	Waiting bool `json:"waiting,omitempty"`
	// Total is how many bytes the image's layers have, 0 until the registry has said it; Done
	// how many of them are here, FromNodes how many other nodes have sent.
	Total     int64 `json:"total"`
	Done      int64 `json:"done"`
	FromNodes int64 `json:"fromNodes"`
	// Progress is all that for people.
	Progress string `json:"progress"`
}

func (p Pulling) text() string {
	switch {
	case p.Waiting:
		return "waiting, as other images are pulled first"
	case p.Total == 0:
		return "waiting for the registry"
	case p.Done == p.Total:
		return fmt.Sprintf("all %.1f MB are here, and are unpacked", mega(p.Total))
	}
	far := fmt.Sprintf("%.1f of %.1f MB", mega(p.Done), mega(p.Total))
	if p.FromNodes > 0 {
		far += fmt.Sprintf(", %.1f MB of them from other nodes", mega(p.FromNodes))
	}
	return far
}

func mega(bytes int64) float64 { return float64(bytes) / 1e6 }

// Pulling are the pulls that go on, the first that was asked for first.
func (s *Store) Pulling() []Pulling {
	s.under.Lock()
	all := slices.Clone(s.underway)
	s.under.Unlock()
	out := make([]Pulling, 0, len(all))
	for _, p := range all {
		out = append(out, p.now(s.transit))
	}
	slices.SortStableFunc(out, func(a, b Pulling) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Image, b.Image))
	})
	return out
}

// progress is that of one pull.
type progress struct {
	image string
	since time.Time
	near  atomic.Int64

	mu      sync.Mutex
	running bool
	layers  map[digest.Digest]int64
	done    map[digest.Digest]bool
}

func (s *Store) beginPull(image string) (p *progress, end func()) {
	p = &progress{image: image, since: time.Now(), layers: map[digest.Digest]int64{}, done: map[digest.Digest]bool{}}
	s.under.Lock()
	defer s.under.Unlock()
	s.underway = append(s.underway, p)
	return p, func() {
		s.under.Lock()
		defer s.under.Unlock()
		s.underway = slices.DeleteFunc(s.underway, func(x *progress) bool { return x == p })
	}
}

func (p *progress) run() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = true
}

func (p *progress) now(t *transit) Pulling {
	out := Pulling{Image: p.image, Since: p.since, FromNodes: p.near.Load()}
	p.mu.Lock()
	defer p.mu.Unlock()
	out.Waiting = !p.running
	for name, size := range p.layers {
		out.Total += size
		if p.done[name] {
			out.Done += size
		} else {
			out.Done += min(size, t.size(name))
		}
	}
	out.Progress = out.text()
	return out
}

// watch has the layers counted that handler gets.
func (p *progress) watch(get images.Handler) images.HandlerFunc {
	return func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		list, err := get.Handle(ctx, desc)
		if err == nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			if _, layer := p.layers[desc.Digest]; layer {
				p.done[desc.Digest] = true
			}
		}
		return list, err
	}
}

// named tells of what a manifest names. Layers that are here already are not asked for.
func (p *progress) named(ctx context.Context, blobs content.Store, children []ocispec.Descriptor) {
	for _, c := range children {
		if !images.IsLayerType(c.MediaType) {
			continue
		}
		_, err := blobs.Info(ctx, c.Digest)
		p.mu.Lock()
		p.layers[c.Digest], p.done[c.Digest] = c.Size, p.done[c.Digest] || err == nil
		p.mu.Unlock()
	}
}
