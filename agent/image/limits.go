package image

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Limits of what an image may consist of. Manifests, indexes and
// configurations are read into memory as a whole; layers are not.
const (
	maxManifest = 4 << 20 // bytes, as registries take (OCI distribution specification, "Pushing Manifests")
	maxConfig   = 8 << 20 // bytes
	maxLayers   = 500     // as many directories as one overlay mount takes (OVL_MAX_STACK)
	maxEntries  = 1000    // manifests in one index
	maxDepth    = 4       // indexes in indexes
	// maxElements is for members and elements of all objects and arrays in one of
	// these documents: an empty one takes two bytes to send, and hundreds in memory.
	maxElements = 100_000
)

// sizeLimit is how large a blob of a media type may be that is read as a
// whole, 0 for layers, which never are, and for files of an archive before it
// is known what they are.
func sizeLimit(mediaType string) int64 {
	switch {
	case images.IsManifestType(mediaType), images.IsIndexType(mediaType):
		return maxManifest
	case images.IsLayerType(mediaType), mediaType == "":
		return 0
	}
	return maxConfig
}

func tooLarge(desc ocispec.Descriptor, size, limit int64) error {
	return fmt.Errorf("%s %s has %d bytes, more than the limit of %d: %w", desc.MediaType, desc.Digest, size, limit,
		errdefs.ErrFailedPrecondition)
}

// checkSize looks at what a descriptor says of a blob's size.
func checkSize(desc ocispec.Descriptor) error {
	if limit := sizeLimit(desc.MediaType); limit > 0 && desc.Size > limit {
		return tooLarge(desc, desc.Size, limit)
	}
	if desc.Size < 0 {
		return fmt.Errorf("%s %s has a negative size: %w", desc.MediaType, desc.Digest, errdefs.ErrInvalidArgument)
	}
	return nil
}

// checkChildren looks at what a manifest or an index refers to.
func checkChildren(desc ocispec.Descriptor, children []ocispec.Descriptor) error {
	for _, c := range children {
		if err := checkSize(c); err != nil {
			return err
		}
	}
	switch {
	case images.IsIndexType(desc.MediaType) && len(children) > maxEntries:
		return fmt.Errorf("index %s has %d entries, more than the limit of %d: %w", desc.Digest, len(children),
			maxEntries, errdefs.ErrFailedPrecondition)
	case images.IsManifestType(desc.MediaType) && len(children) > maxLayers+1:
		return fmt.Errorf("manifest %s has %d layers, more than the limit of %d: %w", desc.Digest, len(children)-1,
			maxLayers, errdefs.ErrFailedPrecondition)
	case images.IsManifestType(desc.MediaType) && len(children) > 0:
		return checkConfig(children[0])
	}
	return nil
}

// checkConfig refuses a configuration that says it is something else, so that
// another limit, or none, would hold for it.
func checkConfig(config ocispec.Descriptor) error {
	if sizeLimit(config.MediaType) != maxConfig {
		return fmt.Errorf("image configuration %s has the media type %q: %w", config.Digest, config.MediaType,
			errdefs.ErrInvalidArgument)
	}
	return checkSize(config)
}

// children finds the parts of an image that keeps the limits: of an index,
// the first manifest for this platform.
func (s *Store) children(root ocispec.Descriptor) images.HandlerFunc {
	parts := images.SetChildrenLabels(s.content, bounded(root, images.ChildrenHandler(s.content)))
	return images.LimitManifests(images.FilterPlatforms(parts, s.platform), s.platform, 1)
}

// bounded hands on what handler finds of an image that keeps the limits.
func bounded(root ocispec.Descriptor, handler images.Handler) images.HandlerFunc {
	var mu sync.Mutex
	depth := map[digest.Digest]int{root.Digest: 1}
	return func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if err := checkSize(desc); err != nil {
			return nil, err
		}
		children, err := handler.Handle(ctx, desc)
		if err != nil {
			return nil, err
		}
		if err := checkChildren(desc, children); err != nil {
			return nil, err
		}
		if !images.IsIndexType(desc.MediaType) {
			return children, nil
		}
		mu.Lock()
		defer mu.Unlock()
		for _, c := range children {
			if depth[c.Digest] = depth[desc.Digest] + 1; depth[c.Digest] > maxDepth {
				return nil, fmt.Errorf("index %s lies in %d others, more than the limit: %w", c.Digest, maxDepth,
					errdefs.ErrFailedPrecondition)
			}
		}
		return children, nil
	}
}

// measured is a content store that opens no blob that is larger than what is
// read as a whole may be, or of another size than its descriptor says: one
// blob can go by two names, as a layer and as a configuration.
type measured struct{ content.Store }

func (m measured) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	r, err := m.Store.ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	limit, err := checkBlob(desc, r.Size())
	if err == nil && limit > 0 {
		if _, err = io.Copy(&elements{}, content.NewReader(r)); err != nil {
			err = fmt.Errorf("%s %s: %w", desc.MediaType, desc.Digest, err)
		}
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// checkBlob compares a blob's size with its descriptor and returns the limit for
// it, 0 for a layer, which is not read as a whole.
func checkBlob(desc ocispec.Descriptor, size int64) (limit int64, err error) {
	if desc.Size != 0 && size != desc.Size {
		return 0, fmt.Errorf("%s %s has %d bytes, its descriptor says %d: %w", desc.MediaType, desc.Digest, size,
			desc.Size, errdefs.ErrInvalidArgument)
	}
	limit = sizeLimit(desc.MediaType)
	if desc.Size == 0 && limit == 0 {
		limit = maxConfig // nothing says that it is a layer of this size
	}
	if limit > 0 && size > limit {
		return limit, tooLarge(desc, size, limit)
	}
	return limit, nil
}

// elements counts the members and elements of a JSON document that is written
// to it, by the marks before them, and fails beyond maxElements.
type elements struct {
	n                 int
	inString, escaped bool
}

func (e *elements) Write(p []byte) (int, error) {
	for _, c := range p {
		switch {
		case e.escaped:
			e.escaped = false
		case e.inString:
			e.escaped, e.inString = c == '\\', c != '"'
		case c == '"':
			e.inString = true
		case c == ',' || c == '[' || c == '{':
			if e.n++; e.n > maxElements {
				return 0, fmt.Errorf("it has more than %d elements: %w", maxElements, errdefs.ErrFailedPrecondition)
			}
		}
	}
	return len(p), nil
}
