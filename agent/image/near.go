package image

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/shoal-project/shoal/agent/image/peer"
)

// SetPeers has layers fetched from other nodes, from now on.
func (s *Store) SetPeers(p *peer.Peers) { s.peers.Store(p) }

// SetReceived has f told how many bytes come from registries, from now on.
func (s *Store) SetReceived(f func(n int)) { s.received.Store(&f) }

// parents remembers which manifest names a layer, as a pull finds out.
type parents struct {
	images.Handler
	blobs    content.Store
	progress *progress

	mu sync.Mutex
	of map[digest.Digest]ocispec.Descriptor
}

// Handle implements images.Handler.
func (p *parents) Handle(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	list, err := p.Handler.Handle(ctx, desc)
	if images.IsManifestType(desc.MediaType) {
		p.progress.named(ctx, p.blobs, list)
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range list {
			p.of[c.Digest] = desc
		}
	}
	return list, err
}

func (p *parents) parent(layer digest.Digest) (ocispec.Descriptor, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	desc, ok := p.of[layer]
	return desc, ok
}

// fetchNear gets layers from other nodes where these have them, or are getting them, and
// all else from the registry.
func (s *Store) fetchNear(peers *peer.Peers, fetcher remotes.Fetcher, p *parents) images.HandlerFunc {
	registry := remotes.FetchHandler(s.content, fetcher)
	return func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		of, ok := p.parent(desc.Digest)
		if !ok || !images.IsLayerType(desc.MediaType) || desc.Size < peer.Least {
			return registry(ctx, desc)
		}
		manifest, err := content.ReadBlob(ctx, s.content, of)
		if err != nil {
			return nil, err
		}
		t := peers.Transfer(manifest, of.Digest, desc, fetcher)
		t.Received = func(n int) { p.progress.near.Add(int64(n)) }
		_, err = remotes.FetchHandler(s.content, t)(ctx, desc)
		if !t.End(ctx, err) {
			return nil, err
		}
		if err := s.discard(ctx, remotes.MakeRefKey(ctx, desc)); err != nil {
			return nil, err
		}
		return registry(ctx, desc)
	}
}

// peerStore is what other nodes get of a Store.
type peerStore struct{ *Store }

// ForPeers is what other nodes get of the store.
func (s *Store) ForPeers() peer.Store { return peerStore{s} }

// Manifest implements peer.Store.
func (s peerStore) Manifest(ctx context.Context, d digest.Digest) ([]byte, error) {
	ctx = namespaces.WithNamespace(ctx, namespace)
	return content.ReadBlob(ctx, s.content, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d})
}

// Layer implements peer.Store.
func (s peerStore) Layer(ctx context.Context, desc ocispec.Descriptor) (peer.Layer, error) {
	if c := s.transit.open(desc.Digest); c != nil {
		return c, nil
	}
	r, err := s.content.ReaderAt(namespaces.WithNamespace(ctx, namespace), desc)
	if err != nil {
		return nil, err
	}
	return wholeLayer{r}, nil
}

// Manifests implements peer.Store.
func (s peerStore) Manifests(ctx context.Context) (out [][]byte, err error) {
	ctx = namespaces.WithNamespace(ctx, namespace)
	list, err := s.images.List(ctx)
	if err != nil {
		return nil, err
	}
	seen := map[digest.Digest]bool{}
	for _, i := range list {
		if seen[i.Target.Digest] {
			continue
		}
		seen[i.Target.Digest] = true
		data, err := s.manifestOf(ctx, i.Target)
		if err != nil {
			continue // removed meanwhile, or it has none for this machine
		}
		out = append(out, data)
	}
	return out, nil
}

// manifestOf reads the manifest for this platform.
func (s *Store) manifestOf(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	parts := images.LimitManifests(images.FilterPlatforms(images.ChildrenHandler(s.content), s.platform), s.platform, 1)
	for range maxDepth {
		if images.IsManifestType(desc.MediaType) {
			return content.ReadBlob(ctx, s.content, desc)
		}
		list, err := parts(ctx, desc)
		if err != nil || len(list) == 0 {
			return nil, errors.Join(errdefs.ErrNotFound, err)
		}
		desc = list[0]
	}
	return nil, errdefs.ErrNotFound
}

// wholeLayer implements peer.Layer.
type wholeLayer struct{ content.ReaderAt }

func (l wholeLayer) Grown(_ context.Context, n int64) (int64, error) {
	if l.Size() <= n {
		return l.Size(), io.EOF
	}
	return l.Size(), nil
}
