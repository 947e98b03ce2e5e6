package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// rogue is a registry that sends what a test tells it to.
type rogue struct {
	*httptest.Server
	blobs    map[digest.Digest][]byte
	manifest []byte
	config   digest.Digest           // of the image
	kind     string                  // media type of the manifest
	instead  map[string]http.Handler // by a part of the path
	away     atomic.Bool
}

func newRogue(t testing.TB) *rogue {
	t.Helper()
	r := &rogue{blobs: map[digest.Digest][]byte{}, kind: ocispec.MediaTypeImageManifest,
		instead: map[string]http.Handler{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	r.Config.Handler = r
	return r
}

func (r *rogue) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if r.away.Load() {
		http.Error(w, "closed", http.StatusServiceUnavailable)
		return
	}
	for part, h := range r.instead {
		if strings.Contains(q.URL.Path, part) {
			h.ServeHTTP(w, q)
			return
		}
	}
	_, name, ok := strings.Cut(q.URL.Path, "/blobs/")
	body, kind := r.blobs[digest.Digest(name)], "application/octet-stream"
	if !ok {
		body, kind = r.manifest, r.kind
		if _, ref, _ := strings.Cut(q.URL.Path, "/manifests/"); strings.HasPrefix(ref, "sha256:") &&
			r.blobs[digest.Digest(ref)] != nil {
			body = r.blobs[digest.Digest(ref)]
			kind = mediaTypeOf(body)
		}
	}
	if body == nil {
		http.NotFound(w, q)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", digest.FromBytes(body).String())
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	if q.Method != http.MethodHead {
		_, _ = w.Write(body)
	}
}

func mediaTypeOf(body []byte) string {
	var m struct{ MediaType string }
	if json.Unmarshal(body, &m) != nil {
		return ""
	}
	return m.MediaType
}

func (r *rogue) name() string { return strings.TrimPrefix(r.URL, "http://") + "/lib/x:1" }

func (r *rogue) add(kind string, body []byte) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(body), Size: int64(len(body))}
	r.blobs[d.Digest] = body
	return d
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// image makes the manifest of an image with these layers (plain tar); change
// may spoil it.
func (r *rogue) image(t testing.TB, change func(*ocispec.Manifest), layers ...[]byte) []byte {
	t.Helper()
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
	m.SchemaVersion = 2
	config := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		RootFS: ocispec.RootFS{Type: "layers"}}
	for _, l := range layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(l))
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		if _, err := w.Write(l); err != nil || w.Close() != nil {
			t.Fatal(err)
		}
		m.Layers = append(m.Layers, r.add(ocispec.MediaTypeImageLayerGzip, z.Bytes()))
	}
	m.Config = r.add(ocispec.MediaTypeImageConfig, encode(t, config))
	if change != nil {
		change(&m)
	}
	r.manifest, r.config = encode(t, m), m.Config.Digest
	return r.manifest
}

// layout is an archive of the image: an OCI layout, without a name.
func (r *rogue) layout(t testing.TB) []byte {
	t.Helper()
	index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex}
	index.SchemaVersion = 2
	index.Manifests = []ocispec.Descriptor{r.add(r.kind, r.manifest)}
	files := map[string][]byte{
		ocispec.ImageLayoutFile: encode(t, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}),
		ocispec.ImageIndexFile:  encode(t, index),
	}
	for d, blob := range r.blobs {
		files["blobs/sha256/"+d.Encoded()] = blob
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(files))) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func layer(t testing.TB, headers ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(w, zeros{}, h.Size); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func endless(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
	if q.Method == http.MethodHead {
		w.Header().Set("Content-Length", "1000")
		w.Header().Set("Docker-Content-Digest", digest.FromString("x").String())
		return
	}
	_, _ = io.Copy(w, zeros{})
}

func newStore(t testing.TB, dir string, keep uint64) *Store {
	t.Helper()
	s, err := Open(t.Context(),
		Config{Dir: dir, Log: slog.New(slog.DiscardHandler), KeepFree: func(uint64) uint64 { return keep }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// TestRogueRegistry: whatever a registry sends, the pull ends with a clear
// error, in bounded memory and on a bounded disk.
func TestRogueRegistry(t *testing.T) {
	big := bytes.Repeat([]byte(" "), maxConfig+1)
	for name, x := range map[string]struct {
		set  func(t *testing.T, r *rogue)
		want string
	}{
		"endless-manifest": {func(_ *testing.T, r *rogue) { r.instead["/manifests/"] = http.HandlerFunc(endless) }, "past expected size"},
		"huge-manifest": {func(t *testing.T, r *rogue) {
			r.manifest = append(r.image(t, nil, layer(t)), bytes.Repeat([]byte(" "), 2*maxManifest)...)
		}, ""},
		"huge-config": {func(t *testing.T, r *rogue) {
			r.image(t, func(m *ocispec.Manifest) { m.Config = r.add(m.Config.MediaType, big) }, layer(t))
		}, "more than the limit of 8388608"},
		"config-is-a-layer": {func(t *testing.T, r *rogue) {
			r.image(t, func(m *ocispec.Manifest) { m.Config.MediaType = ocispec.MediaTypeImageLayer }, layer(t))
		}, "has the media type"},
		"config-and-layer-in-one": {func(t *testing.T, r *rogue) {
			r.image(t, func(m *ocispec.Manifest) {
				m.Layers[0] = r.add(ocispec.MediaTypeImageLayer, big)
				m.Config.Digest = m.Layers[0].Digest
			}, layer(t))
		}, ""},
		"lies-about-size": {func(t *testing.T, r *rogue) {
			r.image(t, func(m *ocispec.Manifest) { m.Layers[0].Size -= 10 },
				layer(t, &tar.Header{Name: "f", Size: 100000}))
		}, ""},
		"lies-about-digest": {func(t *testing.T, r *rogue) {
			r.image(t, func(m *ocispec.Manifest) {
				d := digest.FromString("other")
				r.blobs[d] = r.blobs[m.Layers[0].Digest]
				m.Layers[0].Digest = d
			}, layer(t))
		}, "digest"},
		"many-layers": {func(t *testing.T, r *rogue) {
			r.image(t, func(m *ocispec.Manifest) {
				for range maxLayers {
					m.Layers = append(m.Layers, m.Layers[0])
				}
			}, layer(t))
		}, "layers, more than the limit of 500"},
		"many-entries": {func(t *testing.T, r *rogue) {
			d := r.add(ocispec.MediaTypeImageManifest, r.image(t, nil, layer(t)))
			idx := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex}
			idx.SchemaVersion = 2
			for range maxEntries + 1 {
				idx.Manifests = append(idx.Manifests, d)
			}
			r.manifest, r.kind = encode(t, idx), ocispec.MediaTypeImageIndex
		}, "entries, more than the limit of 1000"},
		"many-empty-layers": {func(t *testing.T, r *rogue) {
			r.image(t, nil, layer(t))
			r.manifest = bytes.Replace(r.manifest, []byte(`"layers":[`),
				append([]byte(`"layers":[`), bytes.Repeat([]byte("{},"), maxElements)...), 1)
		}, "more than 100000 elements"},
		"many-empty-strings": {func(t *testing.T, r *rogue) {
			r.image(t, func(m *ocispec.Manifest) {
				m.Config = r.add(m.Config.MediaType, []byte(`{"config":{"Env":[`+strings.Repeat(`"",`, maxElements)+`""]}}`))
			}, layer(t))
		}, "more than 100000 elements"},
		"compressed-on-the-way": {func(t *testing.T, r *rogue) {
			r.image(t, nil, layer(t))
			r.instead["/blobs/"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Encoding", "zstd")
				_, _ = w.Write(windowOf(29))
			})
		}, `Content-Encoding "zstd"`},
		"far-looking-back": {func(t *testing.T, r *rogue) {
			r.image(t, func(m *ocispec.Manifest) { m.Layers[0] = r.add(ocispec.MediaTypeImageLayerZstd, windowOf(29)) },
				layer(t))
		}, "window size"},
		"deep-index": {func(t *testing.T, r *rogue) {
			d := r.add(ocispec.MediaTypeImageManifest, r.image(t, nil, layer(t)))
			for range maxDepth + 2 {
				idx := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{d}}
				idx.SchemaVersion = 2
				r.manifest = encode(t, idx)
				d = r.add(ocispec.MediaTypeImageIndex, r.manifest)
			}
			r.kind = ocispec.MediaTypeImageIndex
		}, "more than the limit"},
		"endless-error": {func(_ *testing.T, r *rogue) {
			r.instead["/manifests/"] = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				w.WriteHeader(http.StatusForbidden)
				if q.Method != http.MethodHead { // whose body nobody would stop
					_, _ = io.Copy(w, zeros{})
				}
			})
		}, "403"},
		"endless-token": {func(_ *testing.T, r *rogue) {
			r.instead["/token"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, `{"token":"`)
				_, _ = io.CopyN(w, letters{}, 64<<20)
			})
			r.instead["/manifests/"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+r.URL+`/token",service="x"`)
				w.WriteHeader(http.StatusUnauthorized)
			})
		}, "more than it announced"},
		"redirects-for-ever": {func(_ *testing.T, r *rogue) {
			r.instead["/"] = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				http.Redirect(w, q, q.URL.Path+"a", http.StatusFound)
			})
		}, "redirects"},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := newStore(t, t.TempDir(), 0), newRogue(t)
			x.set(t, r)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			id, err := s.Pull(t.Context(), r.name(), nil)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("got %q, %v, want %q", id, err, x.want)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 80<<20 {
				t.Errorf("%d MiB were allocated", used>>20)
			}
			if list := s.List(); len(list) != 0 {
				t.Errorf("there are %d images", len(list))
			}
		})
	}
}

// windowOf is the beginning of a zstd stream that looks back 2^log bytes (RFC
// 8878 section 3.1.1), and a block of 100 KiB.
func windowOf(log byte) []byte {
	return []byte{0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3, 0x03, 0x80, 0x0c, 'a'}
}

// TestBombEndsAtTheLimit: a layer that unpacks to more than there is room for
// leaves others the space that is kept, and nothing of itself.
func TestBombEndsAtTheLimit(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=192m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s, r := newStore(t, filepath.Join(dir, "image"), 160<<20), newRogue(t)
	var files []*tar.Header
	for i := range 64 { // the limit is looked for while they are written
		files = append(files, &tar.Header{Name: fmt.Sprintf("f%d", i), Size: 1 << 20})
	}
	r.image(t, nil, layer(t, files...))
	_, err := s.Pull(t.Context(), r.name(), nil)
	if !Full(err) || !strings.Contains(err.Error(), "imagefs.available") {
		t.Errorf("got %v", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if used := (st.Blocks - st.Bfree) * uint64(st.Bsize); used > 8<<20 {
		t.Errorf("%d MiB are left of the bomb", used>>20)
	}
}

// TestLayersStayInside: links, whiteouts and names that lead out of the image
// change nothing outside of it.
func TestLayersStayInside(t *testing.T) {
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 40) + strings.TrimPrefix(outside, "/")
	for name, headers := range map[string][]*tar.Header{
		"dots":           {{Name: up + "/new", Size: 5}},
		"absolute":       {{Name: outside + "/new", Size: 5}},
		"link-then-file": {{Name: "d", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "d/new", Size: 5}},
		"dots-link": {{Name: "d", Typeflag: tar.TypeSymlink, Linkname: up}, {Name: "d/new", Size: 5},
			{Name: "d/victim", Size: 5}},
		"hard-link":     {{Name: "h", Typeflag: tar.TypeLink, Linkname: up + "/victim"}, {Name: "h", Size: 5}},
		"hard-link-abs": {{Name: "h", Typeflag: tar.TypeLink, Linkname: victim}, {Name: "h", Size: 5}},
		"hard-link-symlink": {{Name: "s", Typeflag: tar.TypeSymlink, Linkname: victim},
			{Name: "h", Typeflag: tar.TypeLink, Linkname: "s"}, {Name: "h", Size: 5}},
		"whiteout":        {{Name: up + "/.wh.victim"}},
		"whiteout-link":   {{Name: "d", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "d/.wh.victim"}, {Name: "d/.wh..wh..opq"}},
		"whiteout-parent": {{Name: "a/.wh..."}, {Name: ".wh..."}, {Name: ".wh.."}},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := newStore(t, t.TempDir(), 0), newRogue(t)
			r.image(t, nil, layer(t, headers...))
			_, err := s.Pull(t.Context(), r.name(), nil)
			t.Log(err) // refused or kept inside, as the entry is
			entries, derr := os.ReadDir(outside)
			if derr != nil || len(entries) != 1 {
				t.Errorf("outside there are %v, %v", entries, derr)
			}
			if b, err := os.ReadFile(victim); err != nil || string(b) != "mine" {
				t.Errorf("victim: %q, %v", b, err)
			}
			var st unix.Stat_t
			if err := unix.Stat(victim, &st); err != nil || st.Nlink != 1 {
				t.Errorf("victim has %d links, %v", st.Nlink, err)
			}
		})
	}
}
