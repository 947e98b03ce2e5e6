package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// streamed makes an image of one layer that is never in memory as a whole.
func (r *rogue) streamed(t testing.TB, write func(*tar.Writer) error) {
	t.Helper()
	var z bytes.Buffer
	gz, err := gzip.NewWriterLevel(&z, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	plain := digest.Canonical.Digester()
	w := tar.NewWriter(io.MultiWriter(gz, plain.Hash()))
	if err := write(w); err != nil {
		t.Fatal(err)
	}
	if w.Close() != nil || gz.Close() != nil {
		t.Fatal("the layer is not whole")
	}
	config := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{plain.Digest()}}}
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest,
		Config: r.add(ocispec.MediaTypeImageConfig, encode(t, config)),
		Layers: []ocispec.Descriptor{r.add(ocispec.MediaTypeImageLayerGzip, z.Bytes())}}
	m.SchemaVersion = 2
	r.manifest = encode(t, m)
}

// tmpfs mounts one for the test.
func tmpfs(t testing.TB, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// TestHeadersAreNotKept: a layer of one directory again and again, each time
// with a megabyte of notes, takes no disk, and must take no memory. Names and
// attributes that stand in the same records as the notes are kept without them.
func TestHeadersAreNotKept(t *testing.T) {
	notes := strings.Repeat("n", 1_000_000)
	for name, h := range map[string]tar.Header{
		"notes": {Name: "d/", PAXRecords: map[string]string{"SHOAL.notes": notes}},
		"name":  {Name: "d/" + strings.Repeat("é", 50) + "/", PAXRecords: map[string]string{"SHOAL.notes": notes}},
		"owner": {Name: "d/", Uname: strings.Repeat("é", 50), Gname: strings.Repeat("é", 50),
			PAXRecords: map[string]string{"SHOAL.notes": notes}},
		"attribute": {Name: "d/", PAXRecords: map[string]string{"SHOAL.notes": notes, xattrRecords + "user.a": "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := newStore(t, t.TempDir(), 0), newRogue(t)
			r.streamed(t, func(w *tar.Writer) error {
				for range 80 { // kept, they would be 76 MiB
					h := h
					h.Typeflag, h.Mode, h.Format = tar.TypeDir, 0o755, tar.FormatPAX
					if err := w.WriteHeader(&h); err != nil {
						return err
					}
				}
				return nil
			})
			grew := held(func() {
				if _, err := s.Pull(t.Context(), r.name(), nil); err != nil {
					t.Error(err)
				}
			})
			if grew > 64<<20 {
				t.Errorf("the unpacker holds %d MiB", grew>>20)
			}
		})
	}
}

// held returns the most memory that work held at one time, in bytes.
func held(work func()) int64 {
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var most uint64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			var now runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc)
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	work()
	close(stop)
	<-stopped
	return int64(most) - int64(before.HeapAlloc)
}

// TestEndlessFileSystem: a tmpfs without a size tells of no blocks at all, and
// takes every layer.
func TestEndlessFileSystem(t *testing.T) {
	s, r := newStore(t, filepath.Join(tmpfs(t, "size=0"), "image"), 0), newRogue(t)
	r.streamed(t, func(w *tar.Writer) error {
		return w.WriteHeader(&tar.Header{Name: "f", Mode: 0o644})
	})
	if _, err := s.Pull(t.Context(), r.name(), nil); err != nil {
		t.Error(err)
	}
}

func TestTally(t *testing.T) {
	for name, h := range map[string]func(i int) *tar.Header{
		"names": func(i int) *tar.Header { return &tar.Header{Name: fmt.Sprint(strings.Repeat("n", 4000), i)} },
		"links": func(i int) *tar.Header { return &tar.Header{Name: "a", Linkname: strings.Repeat("n", 4000)} },
		"attributes": func(i int) *tar.Header {
			return &tar.Header{Name: "a",
				PAXRecords: map[string]string{xattrRecords + "user.a": strings.Repeat("n", 4000)}}
		},
	} {
		count, n := new(tally), 0
		for ; n < maxTally/4000+1; n++ {
			if _, err := count.take(h(n)); err != nil {
				break
			}
		}
		if n > maxTally/4000 || n < maxTally/5000 {
			t.Errorf("%s: %d entries are taken", name, n)
		}
	}
	h := &tar.Header{Name: "a", PAXRecords: map[string]string{"comment": "x", xattrRecords + "user.a": "y"}}
	if ok, err := new(tally).take(h); !ok || err != nil || len(h.PAXRecords) != 1 {
		t.Errorf("%v, %v: %v", ok, err, h.PAXRecords)
	}
	if _, err := new(tally).take(&tar.Header{Name: strings.Repeat("n", maxPath)}); err == nil {
		t.Error("a name that is longer than any path is taken")
	}
}

// TestEmptyFilesEndAtTheLimit: a layer of empty files takes no space, but the
// inodes that others need.
func TestEmptyFilesEndAtTheLimit(t *testing.T) {
	dir := tmpfs(t, "size=1g,nr_inodes=100k")
	s, r := newStore(t, filepath.Join(dir, "image"), 0), newRogue(t)
	s.cfg.KeepInodes = func(total uint64) uint64 { return total - 2000 }
	r.streamed(t, func(w *tar.Writer) error {
		for i := range 50_000 {
			if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("d%d/f%d", i/1000, i), Mode: 0o644}); err != nil {
				return err
			}
		}
		return nil
	})
	_, err := s.Pull(t.Context(), r.name(), nil)
	if !Full(err) || !strings.Contains(err.Error(), "imagefs.inodesFree") {
		t.Errorf("got %v", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if used := st.Files - st.Ffree; used > 100 {
		t.Errorf("%d inodes are left of the bomb", used)
	}
}

// TestOverwrittenFilesEnd: files of one name never fill the disk, and would be
// written for hours.
func TestOverwrittenFilesEnd(t *testing.T) {
	s, r := newStore(t, filepath.Join(tmpfs(t, "size=64m"), "image"), 0), newRogue(t)
	r.streamed(t, func(w *tar.Writer) error {
		for range 100 {
			if err := w.WriteHeader(&tar.Header{Name: "f", Mode: 0o644, Size: 1 << 20}); err != nil {
				return err
			}
			if _, err := io.CopyN(w, zeros{}, 1<<20); err != nil {
				return err
			}
		}
		return nil
	})
	if _, err := s.Pull(t.Context(), r.name(), nil); !Full(err) || !strings.Contains(err.Error(), "more than the image file system holds") {
		t.Errorf("got %v", err)
	}
}

// TestLayerForms: every compression that images have, told by the type or not.
func TestLayerForms(t *testing.T) {
	plain := layer(t, &tar.Header{Name: "f", Size: 1000})
	for name, x := range map[string]struct {
		kind string
		blob []byte
	}{
		"plain":  {ocispec.MediaTypeImageLayer, plain},
		"gzip":   {ocispec.MediaTypeImageLayerGzip, squeezed(t, plain)},
		"docker": {"application/vnd.docker.image.rootfs.diff.tar", squeezed(t, plain)},
		"zstd":   {ocispec.MediaTypeImageLayerZstd, zstdOf(t, plain)},
		"other":  {ocispec.MediaTypeImageLayerGzip, zstdOf(t, plain)},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := newStore(t, t.TempDir(), 0), newRogue(t)
			r.image(t, func(m *ocispec.Manifest) { m.Layers[0] = r.add(x.kind, x.blob) }, plain)
			id, err := s.Pull(t.Context(), r.name(), nil)
			if err != nil {
				t.Fatal(err)
			}
			img, err := s.Find(id)
			if err != nil {
				t.Fatal(err)
			}
			lower, err := s.Lower(t.Context(), img.ChainID)
			if err != nil {
				t.Fatal(err)
			}
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(lower[0], "f"), &st); err != nil || st.Size != 1000 {
				t.Errorf("%d bytes, %v", st.Size, err)
			}
		})
	}
}

// TestLayersAtOnce: layers that are unpacked at the same time make the same tree as one after
// the other, also those that do not say all that the ones below them do.
func TestLayersAtOnce(t *testing.T) {
	dir := func(name string, mode int64) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode, Uid: 7}
	}
	file := func(name string, size int64) *tar.Header { return &tar.Header{Name: name, Size: size} }
	for name, layers := range map[string][][]byte{
		"each has its directories": {
			layer(t, dir("a/", 0o700), file("a/gone", 1), file("a/old", 1)),
			layer(t, dir("a/", 0o700), file("a/old", 2), file("a/.wh.gone", 0)),
			layer(t, dir("a/", 0o700), file("a/new", 3)),
		},
		"a directory is only below": {
			layer(t, dir("a/", 0o700), file("a/gone", 1), file("a/old", 1)),
			layer(t, file("a/old", 2)),
			layer(t, file("a/.wh.gone", 0), file("a/new", 3)),
		},
		"a link to what is below": {
			layer(t, dir("a/", 0o700), file("a/gone", 1), file("a/old", 2), file("a/new", 3)),
			layer(t, dir("a/", 0o700), file("a/.wh.gone", 0)),
			layer(t, dir("a/", 0o700), file("a/x", 1), &tar.Header{Name: "a/y", Typeflag: tar.TypeLink, Linkname: "a/x"}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := newStore(t, t.TempDir(), 0), newRogue(t)
			r.image(t, nil, layers...)
			id, err := s.Pull(t.Context(), r.name(), nil)
			if err != nil {
				t.Fatal(err)
			}
			img, err := s.Find(id)
			if err != nil {
				t.Fatal(err)
			}
			lower, err := s.Lower(t.Context(), img.ChainID)
			if err != nil || len(lower) != len(layers) {
				t.Fatalf("%v, %v", lower, err)
			}
			at := t.TempDir()
			if err := unix.Mount("overlay", at, "overlay", 0, "lowerdir="+strings.Join(lower, ":")); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Unmount(at, 0) }()
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(at, "a"), &st); err != nil || st.Mode&0o777 != 0o700 || st.Uid != 7 {
				t.Errorf("a has the mode %o and the owner %d, %v", st.Mode&0o777, st.Uid, err)
			}
			for f, size := range map[string]int64{"old": 2, "new": 3, "gone": -1} {
				st := unix.Stat_t{Size: -1}
				if _ = unix.Stat(filepath.Join(at, "a", f), &st); st.Size != size {
					t.Errorf("%s has %d bytes, want %d", f, st.Size, size)
				}
			}
		})
	}
}

// BenchmarkUnpack pulls an image of eight layers from a registry on this machine, and prints
// how that compares to a pull whose layers are unpacked one after the other.
func BenchmarkUnpack(b *testing.B) {
	r := newRogue(b)
	var layers [][]byte
	for i := range 8 {
		headers := []*tar.Header{{Name: fmt.Sprint(i, "/"), Typeflag: tar.TypeDir, Mode: 0o755}}
		for j := range 200 {
			headers = append(headers, &tar.Header{Name: fmt.Sprint(i, "/", j), Size: 100_000})
		}
		layers = append(layers, layer(b, headers...))
	}
	r.image(b, nil, layers...)
	pull := func(at int) time.Duration {
		s := newStore(b, b.TempDir(), 0)
		s.unpackers = at
		begin := time.Now()
		if _, err := s.Pull(b.Context(), r.name(), nil); err != nil {
			b.Fatal(err)
		}
		return time.Since(begin)
	}
	var together, apart time.Duration
	for b.Loop() {
		apart += pull(0)
		together += pull(unpackers)
	}
	b.ReportMetric(together.Seconds()/apart.Seconds(), "of-one-by-one")
}
