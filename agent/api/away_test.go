package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWatchWaits: a watch that finds no coordinator is answered as soon as one is there;
// other requests fail at once, and so does a watch that has a time.
func TestWatchWaits(t *testing.T) {
	ca := newCA(t)
	var watches atomic.Int64
	answer := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			node(w, "back")
			return
		}
		watches.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"type":"BOOKMARK","object":{"kind":"Node","apiVersion":"v1","metadata":{}}}`))
	}
	gone := ca.server("", answer)
	s := ca.connect(gone.URL, "")
	address := gone.Listener.Addr().String()
	gone.Close()

	watch := func(ctx context.Context) error {
		w, err := s.Client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
		if err == nil {
			<-w.ResultChan()
			w.Stop()
		}
		return err
	}
	if _, err := asks(t.Context(), s); err == nil {
		t.Error("a request that is no watch was answered")
	}
	short, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := watch(short); err == nil || short.Err() != nil {
		t.Errorf("a watch with a time: %v", err)
	}
	stopped, stop := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, stop)
	if err := watch(stopped); err == nil {
		t.Error("a watch that nobody waits for any more was answered")
	}

	const all = 20
	var wg sync.WaitGroup
	for range all {
		wg.Go(func() {
			if err := watch(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	waiting := func() int {
		c := s.way.coordinators
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.waiting
	}
	for waiting() != all {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond) // it is looked for meanwhile
	if n := waiting(); n != all {
		t.Errorf("%d of %d still wait", n, all)
	}
	ca.serverAt(address, answer)
	wg.Wait()
	if watches.Load() != all || waiting() != 0 {
		t.Errorf("%d watches, %d wait", watches.Load(), waiting())
	}
}

// TestWatchRefusedByCertificate: waiting does not help against a server of another CA, nor
// against one that does not know this node's.
func TestWatchRefusedByCertificate(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	nothing := func(http.ResponseWriter, *http.Request) {}
	refuses := ca.server("", nothing)
	refuses.TLS.ClientCAs, refuses.TLS.MaxVersion = x509.NewCertPool(), tls.VersionTLS12
	refuses.TLS.ClientCAs.AddCert(other.cert)
	for what, url := range map[string]string{"another CA": other.server("", nothing).URL, "a refusal": refuses.URL} {
		if _, err := ca.connect(url, "").Client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{}); err == nil {
			t.Errorf("%s: the watch stands", what)
		}
	}
}
