package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// TestPullsAtOneTime: what all pulls hold together is bounded, because some wait;
// who waits asks the registry nothing, and gets its turn.
func TestPullsAtOneTime(t *testing.T) {
	r := newRogue(t)
	r.image(t, nil, layer(t))
	asked, answer := make(chan string, 9), make(chan struct{})
	r.instead["/manifests/"] = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		asked <- q.URL.Path
		<-answer
		http.NotFound(w, q)
	})
	s, err := Open(t.Context(), Config{Dir: t.TempDir(), Pulls: 2, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	pull := func(ctx context.Context, name string) error {
		_, err := s.Pull(ctx, strings.Replace(r.name(), "/x:", "/"+name+":", 1), nil)
		return err
	}
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		wg.Go(func() { _ = pull(t.Context(), name) })
	}
	<-asked
	<-asked
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = pull(short, "c")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "waiting for other pulls") {
		t.Errorf("the third pull: %v", err)
	}
	select {
	case path := <-asked:
		t.Errorf("the third pull asked for %s", path)
	default:
	}
	close(answer)
	wg.Wait()
	if err := pull(t.Context(), "c"); err == nil || strings.Contains(err.Error(), "waiting") {
		t.Errorf("a pull after the others: %v", err)
	}
}

// TestProgress: how far a pull is can be seen while it goes on, and not after it.
func TestProgress(t *testing.T) {
	s, r := newStore(t, t.TempDir(), 0), newRogue(t)
	body := layer(t, &tar.Header{Name: "f", Size: 1000})
	r.image(t, nil, body, noise(t, 3<<20))
	half, on := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(on) })
	t.Cleanup(goOn) // before the registry ends
	r.instead["/blobs/"] = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, name, _ := strings.Cut(q.URL.Path, "/blobs/")
		blob := r.blobs[digest.Digest(name)]
		w.Header().Set("Content-Length", fmt.Sprint(len(blob)))
		if len(blob) > 1<<20 {
			_, _ = w.Write(blob[:5<<19])
			_ = http.NewResponseController(w).Flush()
			close(half)
			<-on
			blob = blob[5<<19:]
		}
		_, _ = w.Write(blob)
	})
	ended := make(chan error)
	go func() {
		_, err := s.Pull(t.Context(), r.name(), nil)
		ended <- err
	}()
	<-half
	deadline := time.Now().Add(10 * time.Second)
	for {
		list := s.Pulling()
		if len(list) == 1 && list[0].Done > 2<<20 && list[0].Done < list[0].Total {
			if p := list[0].Progress; p != "2.1 of 3.1 MB" || !strings.HasSuffix(list[0].Image, "/lib/x:1") {
				t.Errorf("%s: %s", list[0].Image, p)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", list)
		}
		time.Sleep(10 * time.Millisecond)
	}
	goOn()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if list := s.Pulling(); len(list) > 0 {
		t.Errorf("it goes on: %+v", list)
	}
}
