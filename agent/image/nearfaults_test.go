package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestSpoiledBeginning: a pull ends while a node sends wrong bytes. The next one, which
// goes on where that one ended, does not keep them.
func TestSpoiledBeginning(t *testing.T) {
	f := newFleet(t, 2)
	f.image(t, nil, noise(t, 12<<20))
	f.pullAll(t, "node01")
	bad := "node00"
	f.spoiled.Store(&bad)
	f.nodes["node00"].frozen.Store(6 << 20)
	n := f.nodes["node01"]
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := n.store.Pull(ctx, f.name(), nil)
		done <- err
	}()
	for n.received.Load() < 5<<20 {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("the first pull: %v", err)
	}
	f.nodes["node00"].down.Store(true)
	if _, err := n.store.Pull(t.Context(), f.name(), nil); err != nil {
		t.Error(err)
	}
}

// faults are how neighbours may fail to give a layer that they have.
var faults = map[string]func(w http.ResponseWriter, r *http.Request, good http.Handler){
	"silent": func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() },
	"silent_soon": func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		good.ServeHTTP(&cutting{w, 100 << 10, func() { <-r.Context().Done() }}, r)
	},
	"cut_off": func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		good.ServeHTTP(&cutting{w, 100 << 10, func() { panic(http.ErrAbortHandler) }}, r)
	},
	"a_byte_an_answer": func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		defer func() { _ = recover() }() // the answer looks whole
		good.ServeHTTP(&cutting{w, 1, func() { panic(http.ErrAbortHandler) }}, r)
	},
	"a_byte_a_second": func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		good.ServeHTTP(trickling{w, r.Context(), 1}, r)
	},
	"some_KiB_a_second": func(w http.ResponseWriter, r *http.Request, good http.Handler) {
		good.ServeHTTP(trickling{w, r.Context(), 10 << 10}, r)
	},
	"too_many_requests": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		http.Error(w, "later", http.StatusTooManyRequests)
	},
}

// cutting sends so many bytes and does something else then.
type cutting struct {
	http.ResponseWriter
	left int
	then func()
}

func (c *cutting) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p[:min(len(p), c.left)])
	if c.left -= n; c.left <= 0 {
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		c.then()
	}
	return n, err
}

func (c *cutting) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// trickling sends so many bytes a second.
type trickling struct {
	http.ResponseWriter
	ctx context.Context
	n   int
}

func (s trickling) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		var m int
		m, err = s.ResponseWriter.Write(p[:min(len(p), s.n)])
		_ = http.NewResponseController(s.ResponseWriter).Flush()
		n, p = n+m, p[m:]
		select {
		case <-time.After(time.Second):
		case <-s.ctx.Done():
			return n, s.ctx.Err()
		}
	}
	return n, err
}

func (s trickling) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// TestNeighboursFaults: what neighbours do wrong costs a pull seconds. All is tried at the same
// time, as it is waiting more than work.
func TestNeighboursFaults(t *testing.T) {
	trials := []func(){slowLeader(t), muteKeepers(t)}
	for i, name := range slices.Sorted(maps.Keys(faults)) {
		trials = append(trials, badNeighbours(t, name, i%2))
	}
	var all sync.WaitGroup
	for _, trial := range trials {
		all.Go(trial)
	}
	all.Wait()
}

// badNeighbours: an image of many layers, which two nodes have that do not give it, takes only
// seconds longer: they are left alone after the first layers. Where there are good ones too,
// these give most.
func badNeighbours(t *testing.T, name string, good int) (trial func()) {
	const bad, layers, size = 2, 9, 600 << 10
	f, fault := newFleet(t, bad+good), faults[name]
	var files [][]byte
	for range layers {
		files = append(files, noise(t, size))
	}
	f.image(t, nil, files...)
	f.pullAll(t)
	time.Sleep(500 * time.Millisecond) // the keepers are told
	for i := range bad {
		f.nodes[fmt.Sprintf("node%02d", i)].fault.Store(&fault)
	}
	f.sent.Store(0)
	n := f.join(t, "new", t.TempDir())
	return func() {
		begin := time.Now()
		if _, err := n.store.Pull(t.Context(), f.name(), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(begin); took > 25*time.Second {
			t.Errorf("%s: the pull took %v", name, took)
		}
		if sent := f.sent.Load(); good > 0 && sent > layers*size*3/4 {
			t.Errorf("%s: the registry sent %d bytes", name, sent)
		}
	}
}

// slowLeader: the node that gets a layer at the registry, as the first, has a slow line. Others
// that ask later do not wait for it, and the registry does not send the layer to each.
func slowLeader(t *testing.T) (trial func()) {
	f := newFleet(t, 4)
	f.image(t, nil, noise(t, 4<<20))
	var m ocispec.Manifest
	if err := json.Unmarshal(f.manifest, &m); err != nil {
		t.Fatal(err)
	}
	var first atomic.Bool
	f.instead["/blobs/"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, m.Layers[0].Digest.String()) && first.CompareAndSwap(false, true) {
			w = trickling{w, r.Context(), 30 << 10}
		}
		f.blob(w, r)
	})
	return func() {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := f.nodes["node00"].store.Pull(ctx, f.name(), nil)
			done <- err
		}()
		for !first.Load() {
			time.Sleep(10 * time.Millisecond)
		}
		if took := f.pullAll(t, "node00"); took > 90*time.Second {
			t.Errorf("slow leader: the pulls took %v", took)
		}
		if sent := f.sent.Load(); sent > 9<<20 {
			t.Errorf("slow leader: the registry sent %d bytes", sent)
		}
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("slow leader: %v", err)
		}
	}
}

// muteKeepers: nodes that live but answer no questions do not hold up each layer.
func muteKeepers(t *testing.T) (trial func()) {
	f := newFleet(t, 4)
	var files [][]byte
	for range 36 {
		files = append(files, noise(t, 100<<10))
	}
	f.image(t, nil, files...)
	f.pullAll(t)
	time.Sleep(500 * time.Millisecond) // the keepers are told
	for i := range 3 {
		f.nodes[fmt.Sprintf("node%02d", i)].mute.Store(true)
	}
	n := f.join(t, "new", t.TempDir())
	return func() {
		begin := time.Now()
		if _, err := n.store.Pull(t.Context(), f.name(), nil); err != nil {
			t.Errorf("mute keepers: %v", err)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("mute keepers: the pull took %v", took)
		}
	}
}

// TestWrongBlobIsNotKept: a registry sends other bytes than it announced, once. The next pull
// does not go on with them.
func TestWrongBlobIsNotKept(t *testing.T) {
	for _, what := range []string{"layer", "config"} {
		t.Run(what, func(t *testing.T) {
			s, r := newStore(t, t.TempDir(), 0), newRogue(t)
			var m ocispec.Manifest
			r.image(t, func(made *ocispec.Manifest) { m = *made }, noise(t, 1<<20))
			blob := map[string]ocispec.Descriptor{"layer": m.Layers[0], "config": m.Config}[what]
			path := "/blobs/" + blob.Digest.String()
			r.instead[path] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write(bytes.Repeat([]byte("x"), int(blob.Size)))
			})
			if _, err := s.Pull(t.Context(), r.name(), nil); err == nil || !strings.Contains(err.Error(), "digest") {
				t.Errorf("the first pull: %v", err)
			}
			delete(r.instead, path)
			if _, err := s.Pull(t.Context(), r.name(), nil); err != nil {
				t.Errorf("the second: %v", err)
			}
		})
	}
}
