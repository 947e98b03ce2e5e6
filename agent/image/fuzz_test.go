package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// FuzzPull has a registry serve any manifest, index or configuration.
func FuzzPull(f *testing.F) {
	r := newRogue(f)
	good := r.image(f, nil, layer(f))
	f.Add(good, []byte(`{"os":"linux"}`), false)
	f.Add([]byte(`{"mediaType":"`+ocispec.MediaTypeImageIndex+`","schemaVersion":2,"manifests":[{"mediaType":"`+
		ocispec.MediaTypeImageManifest+`","size":-1}]}`), []byte(`{}`), true)
	f.Add([]byte(`{"schemaVersion":2,"config":{"size":9e99},"layers":[null]}`), []byte(`[]`), false)
	s := newStore(f, f.TempDir(), 0)
	f.Fuzz(func(t *testing.T, manifest, config []byte, index bool) {
		r.manifest, r.kind = manifest, ocispec.MediaTypeImageManifest
		if index {
			r.kind = ocispec.MediaTypeImageIndex
		}
		var m ocispec.Manifest
		if json.Unmarshal(manifest, &m) == nil && m.Config.Size == int64(len(config)) {
			r.blobs[m.Config.Digest] = config
		}
		if id, err := s.Pull(t.Context(), r.name(), nil); err == nil {
			if err := s.Remove(t.Context(), id, func(string) bool { return false }); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzManifest looks at what any manifest or index refers to.
func FuzzManifest(f *testing.F) {
	r := newRogue(f)
	f.Add(r.image(f, nil, layer(f)), false)
	f.Add([]byte(`{"manifests":[{"size":5}]}`), true)
	f.Fuzz(func(t *testing.T, b []byte, index bool) {
		desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(b)}
		var children []ocispec.Descriptor
		if index {
			desc.MediaType = ocispec.MediaTypeImageIndex
			var idx ocispec.Index
			if json.Unmarshal(b, &idx) != nil {
				return
			}
			children = idx.Manifests
		} else {
			var m ocispec.Manifest
			if json.Unmarshal(b, &m) != nil {
				return
			}
			children = append([]ocispec.Descriptor{m.Config}, m.Layers...)
		}
		if checkChildren(desc, children) != nil {
			return
		}
		for i, c := range children {
			if c.Size < 0 || !images.IsLayerType(c.MediaType) && c.Size > maxConfig || !index && i == 0 &&
				images.IsLayerType(c.MediaType) {
				t.Errorf("accepted %v", c)
			}
		}
	})
}

// FuzzArchive imports anything as an image archive.
func FuzzArchive(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, body := range map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "index.json": `{"schemaVersion":2,"manifests":[]}`,
		"manifest.json": `[{"Config":"c","Layers":["l"]}]`, "c": `{}`} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(body))}); err != nil {
			f.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			f.Fatal(err)
		}
	}
	w.Close()
	f.Add(b.Bytes())
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	s := newStore(f, f.TempDir(), 0)
	file := filepath.Join(f.TempDir(), "a.tar")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _ = s.Import(t.Context(), file)
	})
}

// FuzzLayer unpacks any layer: whatever its entries, links and whiteouts say,
// nothing comes to be beside the store.
func FuzzLayer(f *testing.F) {
	for _, headers := range [][]*tar.Header{
		{{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "etc/passwd", Size: 3}, {Name: "etc/.wh.shadow"},
			{Name: "etc/.wh..wh..opq"}},
		{{Name: "../../../../beside", Size: 1}, {Name: "/beside", Size: 1}},
		{{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "../../../../.."}, {Name: "a/beside", Size: 1}, {Name: "a/.wh.beside"}},
		{{Name: "h", Typeflag: tar.TypeLink, Linkname: "../../../../../etc/passwd"}, {Name: ".wh...", Size: 0}, {Name: ".wh.."}},
	} {
		f.Add(layer(f, headers...))
	}
	// A sparse file of a few bytes could fill the disk: the store has one of its own.
	dir := tmpfs(f, "size=64m")
	r, s := newRogue(f), newStore(f, filepath.Join(dir, "a", "b", "store"), 0)
	f.Fuzz(func(t *testing.T, data []byte) {
		clear(r.blobs)
		r.image(t, nil, data)
		id, err := s.Pull(t.Context(), r.name(), nil)
		if err == nil {
			err = s.Remove(t.Context(), id, func(string) bool { return false })
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, d := range []string{dir, filepath.Join(dir, "a"), filepath.Join(dir, "a", "b")} {
			if beside, err := os.ReadDir(d); err != nil || len(beside) != 1 {
				t.Fatalf("in %s: %v, %v", d, beside, err)
			}
		}
	})
}
