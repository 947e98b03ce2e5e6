package image

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
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
