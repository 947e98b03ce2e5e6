package image

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is one image on the node. It is never changed once published.
type Image struct {
	ID      string   // digest of its configuration: "sha256:…"
	Tags    []string // docker.io/library/nginx:1.27
	Digests []string // docker.io/library/nginx@sha256:…
	Size    int64    // bytes of compressed content
	ChainID string   // its top layer
	Config  ocispec.ImageConfig
	Pinned  bool // not to be collected
}

// User is the user of the image's configuration: a number, or a name.
func (i *Image) User() (uid *int64, name string) {
	user, _, _ := strings.Cut(i.Config.User, ":")
	if user == "" {
		return nil, ""
	}
	if n, err := strconv.ParseInt(user, 10, 64); err == nil {
		return &n, ""
	}
	return nil, user
}

// Ref is what a container's status names as its image: a digest reference, of
// the repository that the container asked for where there is one, else the ID.
func (i *Image) Ref(asked string) string {
	if name, err := Normalize(asked); err == nil {
		repository, _, _ := strings.Cut(name, "@")
		if colon := strings.LastIndexByte(repository, ':'); colon > strings.LastIndexByte(repository, '/') {
			repository = repository[:colon]
		}
		for _, d := range i.Digests {
			if strings.HasPrefix(d, repository+"@") {
				return d
			}
		}
	}
	if len(i.Digests) > 0 {
		return i.Digests[0]
	}
	return i.ID
}

type index struct {
	byID   map[string]*Image
	byName map[string]*Image
}

// Normalize completes a reference as Docker does: registry, library/ and
// :latest (IMG-1, IMG-2, IMG-4).
func Normalize(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("failed to parse image reference %q: %w: %w", ref, err, errdefs.ErrInvalidArgument)
	}
	return named.String(), nil
}

// reload reads the index anew from the database.
func (s *Store) reload(ctx context.Context) error {
	s.loading.Lock()
	defer s.loading.Unlock()
	ctx = namespaces.WithNamespace(ctx, namespace)
	all, err := s.images.List(ctx)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	idx := index{byID: map[string]*Image{}, byName: map[string]*Image{}}
	for _, rec := range all {
		img, err := s.read(ctx, rec.Target)
		if err != nil {
			s.cfg.Log.Warn("an image is incomplete; pull or import it again", "image", rec.Name, "err", err)
			continue
		}
		if known, ok := idx.byID[img.ID]; ok {
			img = known
		}
		img.Pinned = img.Pinned || rec.Labels[pinnedLabel] == pinned
		idx.byID[img.ID] = img
		idx.byName[rec.Name] = img
		if strings.Contains(rec.Name, "@") {
			img.Digests = append(img.Digests, rec.Name)
		} else {
			img.Tags = append(img.Tags, rec.Name)
		}
	}
	s.mu.Lock()
	s.index = idx
	s.mu.Unlock()
	return nil
}

// read describes the image behind a manifest or index.
func (s *Store) read(ctx context.Context, target ocispec.Descriptor) (*Image, error) {
	m, err := images.Manifest(ctx, s.content, target, s.platform)
	if err != nil {
		return nil, err
	}
	if err := checkConfig(m.Config); err != nil {
		return nil, err
	}
	blob, err := content.ReadBlob(ctx, s.content, m.Config)
	if err != nil {
		return nil, err
	}
	var config ocispec.Image
	if err := json.Unmarshal(blob, &config); err != nil {
		return nil, fmt.Errorf("read image configuration: %w", err)
	}
	img := &Image{ID: m.Config.Digest.String(), Config: config.Config, Size: target.Size + m.Config.Size}
	for _, l := range m.Layers {
		img.Size += l.Size
	}
	if len(config.RootFS.DiffIDs) > 0 {
		img.ChainID = identity.ChainID(config.RootFS.DiffIDs).String()
	}
	return img, nil
}

// List returns all images, in the order of their IDs.
func (s *Store) List() []*Image {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.SortedFunc(maps.Values(s.index.byID), func(a, b *Image) int { return cmp.Compare(a.ID, b.ID) })
}

// Find looks an image up by ID (a unique prefix is enough, with or without
// "sha256:") or by reference. The error is errdefs.ErrNotFound.
func (s *Store) Find(ref string) (*Image, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if img := s.byID(ref); img != nil {
		return img, nil
	}
	if img, ok := s.index.byName[ref]; ok {
		return img, nil
	}
	if name, err := Normalize(ref); err == nil {
		if img, ok := s.index.byName[name]; ok {
			return img, nil
		}
	}
	return nil, fmt.Errorf("image %q: %w", ref, errdefs.ErrNotFound)
}

const shortID = 12 // fewest characters that are taken for an ID

func (s *Store) byID(ref string) *Image {
	hex := strings.TrimPrefix(ref, "sha256:")
	if img, ok := s.index.byID["sha256:"+hex]; ok {
		return img
	}
	if len(hex) < shortID || digest.SHA256.Validate(hex+strings.Repeat("0", max(0, 64-len(hex)))) != nil {
		return nil
	}
	var found *Image
	for id, img := range s.index.byID {
		if strings.HasPrefix(id, "sha256:"+hex) {
			if found != nil {
				return nil
			}
			found = img
		}
	}
	return found
}

// Remove forgets all names of the image and frees what no other image and no
// container uses. An image that is not there is no error. inUse tells which
// layers containers still need.
func (s *Store) Remove(ctx context.Context, ref string, inUse func(chainID string) bool) error {
	img, err := s.Find(ref)
	if err != nil {
		return nil
	}
	ctx = namespaces.WithNamespace(ctx, namespace)
	names := append(append([]string{}, img.Tags...), img.Digests...)
	for _, name := range names {
		if err := s.images.Delete(ctx, name); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove image %s: %w", name, err)
		}
	}
	if err := s.reload(ctx); err != nil {
		return err
	}
	if !inUse(img.ChainID) {
		if err := s.Release(ctx, img.ChainID); err != nil {
			return err
		}
	}
	return s.collect(ctx)
}
