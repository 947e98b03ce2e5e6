package image

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Import reads an archive (OCI layout or docker-archive, plain or
// compressed) and returns the names of its images.
func (s *Store) Import(ctx context.Context, file string) ([]string, error) {
	unlock := s.pulls.lock("import")
	defer unlock()
	var names []string
	err := s.withSpace(ctx, func(ctx context.Context) (err error) {
		names, err = s.importFile(ctx, file)
		return err
	})
	if err = s.giveBack(ctx, err); err != nil {
		return nil, fmt.Errorf("import %s: %w", file, err)
	}
	return names, nil
}

func (s *Store) importFile(ctx context.Context, file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	plain, err := compression.DecompressStream(bufio.NewReader(f))
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	ctx, done, err := s.leased(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	checked := guarded(plain)
	defer checked.Close()
	root, err := archive.ImportIndex(ctx, s.content, checked)
	if err != nil {
		return nil, err
	}
	blob, err := content.ReadBlob(ctx, s.content, root)
	if err != nil {
		return nil, err
	}
	var idx ocispec.Index
	if err := json.Unmarshal(blob, &idx); err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	if err := checkChildren(root, idx.Manifests); err != nil {
		return nil, err
	}
	return s.importAll(ctx, idx.Manifests, file)
}

// pinnedLabel marks images that are not collected, as containerd's CRI plugin does:
// those of archives, for nobody knows a registry that has them.
const pinnedLabel, pinned = "io.cri-containerd.pinned", "pinned"

func (s *Store) importAll(ctx context.Context, manifests []ocispec.Descriptor, file string) ([]string, error) {
	var all []string
	for _, m := range manifests {
		if m.Platform != nil && !s.platform.Match(*m.Platform) {
			continue
		}
		names, err := importNames(m, file)
		if err != nil {
			return nil, err
		}
		if err := s.unpack(ctx, s.children(m), m); err != nil {
			return nil, err
		}
		if _, err := s.publish(ctx, m, names, map[string]string{pinnedLabel: pinned}); err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	if len(all) == 0 {
		return nil, errors.New("no image for this platform in it")
	}
	return all, nil
}

// importNames are the references of an archive's image. One that has only a
// tag, or no name at all, is named after the file.
func importNames(m ocispec.Descriptor, file string) ([]string, error) {
	name := m.Annotations[images.AnnotationImageName]
	if name == "" {
		name = m.Annotations[ocispec.AnnotationRefName]
	}
	if !strings.ContainsAny(name, "/:") {
		base, _, _ := strings.Cut(filepath.Base(file), ".")
		name = strings.TrimSuffix(strings.ToLower(base)+":"+name, ":")
	}
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return nil, fmt.Errorf("image name %q: %w", name, err)
	}
	byDigest := reference.TrimNamed(named).Name() + "@" + m.Digest.String()
	if _, ok := named.(reference.Digested); ok {
		return []string{byDigest}, nil
	}
	return []string{named.String(), byDigest}, nil
}

// stamp tells an archive that was imported before from a new one.
type stamp struct {
	ModTime time.Time
	Size    int64
	Names   []string
}

// ImportDir imports the archives in dir (*.tar, *.tar.gz, *.tgz) that are new
// or changed since the last time, or whose images are gone. A missing
// directory is no error. One bad archive does not stop the others.
func (s *Store) ImportDir(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read image archives: %w", err)
	}
	done := s.readStamps()
	var errs []error
	changed := false
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || !isArchive(e.Name()) {
			continue
		}
		file := filepath.Join(dir, e.Name())
		old := done[file]
		if old.Size == info.Size() && old.ModTime.Equal(info.ModTime()) && s.haveAll(old.Names) {
			continue
		}
		names, err := s.Import(ctx, file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.cfg.Log.Info("imported image archive", "file", file, "images", names)
		done[file], changed = stamp{ModTime: info.ModTime(), Size: info.Size(), Names: names}, true
	}
	if changed {
		errs = append(errs, s.writeStamps(done))
	}
	return errors.Join(errs...)
}

func isArchive(name string) bool {
	for _, ext := range []string{".tar", ".tar.gz", ".tgz", ".tar.zst"} {
		if strings.HasSuffix(name, ext) {
			return true
		}
	}
	return false
}

func (s *Store) haveAll(names []string) bool {
	for _, n := range names {
		if _, err := s.Find(n); err != nil {
			return false
		}
	}
	return len(names) > 0
}

func (s *Store) stampFile() string { return filepath.Join(s.cfg.Dir, "imported.json") }

// readStamps never fails: without stamps everything is imported again.
func (s *Store) readStamps() map[string]stamp {
	m := map[string]stamp{}
	if b, err := os.ReadFile(s.stampFile()); err == nil {
		if json.Unmarshal(b, &m) != nil {
			m = map[string]stamp{}
		}
	}
	return m
}

func (s *Store) writeStamps(m map[string]stamp) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	tmp := s.stampFile() + ".tmp"
	for _, f := range []string{tmp, s.stampFile()} {
		if info, err := os.Lstat(f); err == nil && info.IsDir() {
			_ = os.RemoveAll(f) // what is written next says why not
		}
	}
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("note imported archives: %w", err)
	}
	return os.Rename(tmp, s.stampFile())
}
