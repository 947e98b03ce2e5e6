package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// size is how many bytes of blobs a store has, whole ones and beginnings.
func size(t *testing.T, s *Store) (n int64) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(s.Dir(), "content"), func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && d.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// asKilled is a store as the disk has it when the agent is killed.
func asKilled(t *testing.T, dir string) (killed string) {
	t.Helper()
	for range 10 {
		killed = filepath.Join(t.TempDir(), "killed")
		switch err := os.CopyFS(killed, os.DirFS(dir)); {
		case err == nil:
			return killed
		case !errors.Is(err, fs.ErrNotExist): // a blob became whole meanwhile, and was moved
			t.Fatal(err)
		}
	}
	t.Fatal("the store does not come to rest")
	return ""
}

// TestLeftovers: what pulls left that were not finished goes when it is asked for, also of an
// agent that was killed; what is being pulled stays.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	s, r := newStore(t, dir, 0), newRogue(t)
	var m ocispec.Manifest
	r.image(t, func(made *ocispec.Manifest) { m = *made }, noise(t, 2<<20), noise(t, 3<<20))
	stuck := make(chan struct{}, 8)
	half := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, _ = w.Write(r.blobs[m.Layers[1].Digest][:1<<20])
		_ = http.NewResponseController(w).Flush()
		stuck <- struct{}{}
		<-q.Context().Done()
	})
	path := "/blobs/" + m.Layers[1].Digest.String()
	begin := func() (end func()) {
		r.instead[path] = half
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = s.Pull(ctx, r.name(), nil)
		}()
		<-stuck
		for begun := time.Now(); size(t, s) < 3<<20; time.Sleep(10 * time.Millisecond) {
			if time.Since(begun) > 10*time.Second {
				t.Fatalf("%d bytes came", size(t, s))
			}
		}
		return func() { cancel(); <-done }
	}
	reclaim := func() {
		t.Helper()
		if err := s.Reclaim(t.Context()); err != nil {
			t.Error(err)
		}
	}
	end := begin()
	reclaim()
	if n := size(t, s); n < 3<<20 {
		t.Errorf("%d bytes are left of a pull that goes on", n)
	}
	end()
	if n := size(t, s); n < 3<<20 {
		t.Errorf("%d bytes are left for the next pull", n)
	}
	reclaim()
	if n := size(t, s); n > 64<<10 {
		t.Errorf("%d bytes are left of a pull that ended", n)
	}

	end = begin()
	killed := asKilled(t, dir)
	end()
	after, err := Open(t.Context(), Config{Dir: killed, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	if n := size(t, after); n < 3<<20 {
		t.Errorf("%d bytes are there after a start", n)
	}
	if err := after.Reclaim(t.Context()); err != nil {
		t.Error(err)
	}
	if n := size(t, after); n > 64<<10 {
		t.Errorf("%d bytes are left of an agent that was killed", n)
	}
}

// TestRegistryWithoutRanges: a pull goes on from where an earlier one ended, also at registries
// that answer no request for the rest, or send all of it.
func TestRegistryWithoutRanges(t *testing.T) {
	for name, status := range map[string]int{"refuses": http.StatusRequestedRangeNotSatisfiable, "ignores": 0} {
		t.Run(name, func(t *testing.T) {
			s, r := newStore(t, t.TempDir(), 0), newRogue(t)
			var m ocispec.Manifest
			r.image(t, func(made *ocispec.Manifest) { m = *made }, noise(t, 3<<20))
			layer := r.blobs[m.Layers[0].Digest]
			cut, asked := true, 0
			path := "/blobs/" + m.Layers[0].Digest.String()
			r.instead[path] = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				switch rest := q.Header.Get("Range") != ""; {
				case cut:
					w.Header().Set("Content-Length", fmt.Sprint(len(layer)))
					_, _ = w.Write(layer[:1<<20])
					panic(http.ErrAbortHandler)
				case rest && status != 0:
					asked++
					w.WriteHeader(status)
				default:
					asked++
					_, _ = w.Write(layer)
				}
			})
			if _, err := s.Pull(t.Context(), r.name(), nil); err == nil {
				t.Fatal("a layer that is cut off was pulled")
			}
			if n := size(t, s); n < 1<<20 {
				t.Fatalf("%d bytes are left for the next pull", n)
			}
			cut = false
			if _, err := s.Pull(t.Context(), r.name(), nil); err != nil {
				t.Error(err)
			}
			if asked == 0 {
				t.Error("the registry was not asked for the rest")
			}
		})
	}
}
