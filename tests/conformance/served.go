package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// servedFile is a tar of what agnhost's registry server serves, in the cache.
const servedFile = "served.tar"

// packServed writes the files from which `agnhost fake-registry-server` serves
// images: one, pause:testing, as in upstream's agnhost. A tag's file has the
// digest of an index; manifests and blobs are files by their digests.
func packServed(cache string) error {
	img, err := pauseImage(cache).make(map[string]v1.Image{"": empty.Image})
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	s := served{w: tar.NewWriter(&buf), dir: "var/registry/pause"}
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img,
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}})
	digest, err := s.manifest(index)
	if err != nil {
		return err
	}
	if err := writeFile(s.w, path.Join(s.dir, "manifests", "testing"), 0o644, []byte(digest.String())); err != nil {
		return err
	}
	if _, err := s.manifest(img); err != nil {
		return err
	}
	if err := s.blobs(img); err != nil {
		return err
	}
	if err := s.w.Close(); err != nil {
		return err
	}
	out := filepath.Join(cache, servedFile)
	if err := os.WriteFile(out+".part", buf.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(out+".part", out)
}

// served writes an image's manifests and blobs below dir.
type served struct {
	w   *tar.Writer
	dir string
}

func (s served) manifest(m interface {
	Digest() (v1.Hash, error)
	RawManifest() ([]byte, error)
}) (v1.Hash, error) {
	digest, err := m.Digest()
	if err != nil {
		return digest, err
	}
	data, err := m.RawManifest()
	if err != nil {
		return digest, err
	}
	return digest, s.write("manifests", digest, data)
}

func (s served) blobs(img v1.Image) error {
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	digest, err := img.ConfigName()
	if err != nil {
		return err
	}
	if err := s.write("blobs", digest, config); err != nil {
		return err
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		if err := s.layer(l); err != nil {
			return fmt.Errorf("layer: %w", err)
		}
	}
	return nil
}

func (s served) layer(l v1.Layer) error {
	digest, err := l.Digest()
	if err != nil {
		return err
	}
	r, err := l.Compressed()
	if err != nil {
		return err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return s.write("blobs", digest, data)
}

func (s served) write(kind string, digest v1.Hash, data []byte) error {
	name := path.Join(s.dir, kind, digest.Algorithm, digest.Hex[:2], digest.Hex, "data")
	return writeFile(s.w, name, 0o644, data)
}
