package image

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// Limits of what a layer may make the unpacker hold. Nothing else of a layer
// stays in memory, so that a small file which unpacks to much costs disk only.
const (
	// unpackers is how many layers are unpacked at one time, of all images.
	unpackers = 4
	// maxWindow is how far a zstd stream may look back: what the zstd program
	// takes without being asked (ZSTD_WINDOWLOG_LIMIT_DEFAULT).
	maxWindow = 128 << 20
	// maxTally is for what the library keeps of each entry until the layer ends:
	// its path, and of a directory the whole header. It is enough for more than a
	// million files.
	maxTally   = 256 << 20
	entryCost  = 128
	headerCost = 512 // of a directory: the header and its times' places
	recordCost = 128 // of an extended attribute: its place in the header's map
	maxPath    = unix.PathMax
	// maxTrailer is what may follow the end of the archive: padding.
	maxTrailer = 16 << 20
)

// applier unpacks layers as containerd's does, within the limits.
type applier struct {
	content  content.Provider
	places   chan struct{}          // of unpackers
	capacity func() (uint64, error) // of the file system that is unpacked to
}

// Apply unpacks one layer to the mounts of a snapshot and returns what it was
// unpacked from, whose digest the image's configuration has to name.
func (a applier) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount,
	_ ...diff.ApplyOpt) (d ocispec.Descriptor, err error) {
	select {
	case a.places <- struct{}{}:
	case <-ctx.Done():
		return d, ctx.Err()
	}
	defer func() { <-a.places }()
	blob, err := a.content.ReaderAt(ctx, desc)
	if err != nil {
		return d, err
	}
	defer blob.Close()
	most, err := a.capacity()
	if err != nil {
		return d, err
	}
	plain, err := decompress(ctx, desc.MediaType, content.NewReader(blob))
	if err != nil {
		return d, err
	}
	defer plain.Close()
	digester := digest.Canonical.Digester()
	counted := &counter{Reader: io.TeeReader(plain, digester.Hash()), left: most}
	if err := unpackTo(ctx, mounts, counted); err != nil {
		return d, err
	}
	counted.left = min(counted.left, maxTrailer)
	if _, err := io.Copy(io.Discard, counted); err != nil {
		return d, err
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Size: counted.n, Digest: digester.Digest()}, nil
}

// decompress reads what a layer holds. Its compression is told by its first
// bytes, as some types of layers do not say it.
func decompress(ctx context.Context, mediaType string, r io.Reader) (io.ReadCloser, error) {
	compressed, err := images.DiffCompression(ctx, mediaType)
	if err != nil {
		return nil, fmt.Errorf("layer of the type %q: %w", mediaType, err)
	}
	if compressed == "" {
		return io.NopCloser(r), nil
	}
	const longestMagic = 10
	buf := bufio.NewReaderSize(r, 32<<10)
	head, err := buf.Peek(longestMagic)
	if err != nil && len(head) == 0 && err != io.EOF {
		return nil, err
	}
	if compression.DetectCompression(head) != compression.Zstd {
		return compression.DecompressStream(buf)
	}
	z, err := zstd.NewReader(buf, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, err
	}
	return z.IOReadCloser(), nil
}

// counter fails where an archive is larger than the disk: no file system could
// hold its files, and unpacking would go on for hours where they overwrite
// each other.
type counter struct {
	io.Reader
	n    int64
	left uint64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	if uint64(n) > c.left {
		return 0, fmt.Errorf("the layer unpacks to more than the image file system holds: %w", unix.ENOSPC)
	}
	c.left -= uint64(n)
	return n, err
}

// unpackTo writes an archive to the mounts of a snapshot: to the upper
// directory of an overlay itself, whose whiteouts are devices.
func unpackTo(ctx context.Context, mounts []mount.Mount, r io.Reader) error {
	t := new(tally)
	limit := archive.WithFilter(t.take)
	if len(mounts) == 1 && mounts[0].Type == "overlay" {
		upper, lower := "", []string(nil)
		for _, o := range mounts[0].Options {
			if dir, ok := strings.CutPrefix(o, "upperdir="); ok {
				upper = dir
			} else if dirs, ok := strings.CutPrefix(o, "lowerdir="); ok {
				lower = strings.Split(dirs, ":")
			}
		}
		if upper == "" {
			return fmt.Errorf("unpack to a read-only overlay %v: %w", mounts[0].Options, errdefs.ErrInvalidArgument)
		}
		if lower == nil {
			t.dirs = map[string]bool{".": true}
		}
		_, err := archive.Apply(ctx, upper, r, limit, archive.WithConvertWhiteout(archive.OverlayConvertWhiteout),
			archive.WithParents(lower))
		if lower == nil && errors.Is(err, fs.ErrNotExist) {
			err = errors.Join(errNeedsLower, err) // a link to a file below
		}
		return err
	}
	return mount.WithTempMount(ctx, mounts, func(root string) error {
		_, err := archive.Apply(ctx, root, r, limit)
		return err
	})
}

// xattrRecords is the prefix of the extended attributes among a header's
// records, the only ones that the unpacker reads.
const xattrRecords = "SCHILY.xattr."

// errNeedsLower is of a layer that is unpacked before those below it, and does not say all
// that they do: the directory of an entry, whose mode and owner are theirs, or the file that
// an entry is a link to.
var errNeedsLower = errors.New("the layer needs those below it")

// tally adds up what the unpacker keeps of a layer's entries.
type tally struct {
	n    int
	dirs map[string]bool // of the layer, when it is unpacked without those below it
}

// alone tells whether the layer itself has the directory of an entry.
func (t *tally) alone(h *tar.Header) bool {
	if t.dirs == nil {
		return true
	}
	name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	if name == "" {
		return true
	}
	if h.Typeflag == tar.TypeDir {
		t.dirs[name] = true
	}
	return t.dirs[path.Dir(name)]
}

// take cuts a header down to what the unpacker reads. What it leaves is copied:
// the reader's strings are parts of a block of up to 1 MiB that holds all the
// records of an entry, and one of them would keep the whole block.
func (t *tally) take(h *tar.Header) (bool, error) {
	if len(h.Name) >= maxPath || len(h.Linkname) >= maxPath {
		return false, fmt.Errorf("layer: a name has more than %d bytes: %w", maxPath-1, errdefs.ErrFailedPrecondition)
	}
	h.Name, h.Linkname, h.Uname, h.Gname = strings.Clone(h.Name), strings.Clone(h.Linkname), "", ""
	if !t.alone(h) {
		return false, errNeedsLower
	}
	t.n += entryCost + len(h.Name) + len(h.Linkname)
	if h.Typeflag == tar.TypeDir {
		t.n += headerCost
	}
	var kept map[string]string
	for key, value := range h.PAXRecords {
		if !strings.HasPrefix(key, xattrRecords) {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[strings.Clone(key)] = strings.Clone(value)
		t.n += recordCost + len(key) + len(value)
	}
	h.PAXRecords = kept
	h.Xattrs = nil //nolint:staticcheck // the reader still fills it, with parts of the block
	if t.n > maxTally {
		return false, fmt.Errorf("layer: the names of its entries take more than %d MiB: %w", maxTally>>20,
			errdefs.ErrFailedPrecondition)
	}
	return true, nil
}
