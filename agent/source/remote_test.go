package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// server has what it is given, and an error while that is empty.
type server struct {
	*httptest.Server
	has  atomic.Value
	asks atomic.Value // the last request's header
}

func newServer(t *testing.T, has string) *server {
	s := &server{}
	s.has.Store(has)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asks.Store(r.Header)
		if text := s.has.Load().(string); text != "" {
			fmt.Fprint(w, text)
			return
		}
		http.Error(w, "not now", http.StatusServiceUnavailable)
	}))
	t.Cleanup(s.Close)
	return s
}

// TestRemoteManifests: pods of a server run beside those of files, until it has others; what
// cannot be read changes nothing, and ends none that ran before the agent's start.
func TestRemoteManifests(t *testing.T) {
	srv := newServer(t, "")
	h := newHandler()
	h.pods["of-before"] = handled{"before-n1", nameFile}
	dir := filepath.Join(t.TempDir(), "manifests")
	if err := errors.Join(os.Mkdir(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "f.yaml"), []byte(manifest("local", "i:1")), 0o600)); err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset()
	s := &Static{Dir: dir, Node: "n1", Handler: h, Log: slog.New(slog.DiscardHandler), Client: client,
		NodeUID: func() types.UID { return "node" },
		Remote:  &Remote{URL: srv.URL, Header: http.Header{"authorization": {"Bearer x"}}, Every: 10 * time.Millisecond}}
	s.mirrors = map[types.NamespacedName]*corev1.Pod{{Namespace: "ns", Name: "before-n1"}: {
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "before-n1", UID: "mirror"}}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	h.await(t, "local-n1 runs")
	time.Sleep(100 * time.Millisecond) // some more answers
	if said := h.heard(); !slices.Equal(said, []string{"local-n1 runs"}) {
		t.Errorf("while the server has nothing: %q", said)
	}
	if create, remove := s.mirrorPlan(); len(remove) > 0 {
		t.Errorf("mirrors %v, %v", create, remove)
	}
	srv.has.Store(manifest("one", "i:1"))
	h.await(t, "one-n1 runs")
	h.await(t, "before-n1 is removed")
	if got := srv.asks.Load().(http.Header).Get("Authorization"); got != "Bearer x" {
		t.Errorf("authorization %q", got)
	}
	for _, bad := range []string{"", "{", "kind: Pod", manifest("x", "")[:40],
		"{kind: PodList, apiVersion: v1, items: [{}, null]}"} {
		srv.has.Store(bad)
		time.Sleep(50 * time.Millisecond)
	}
	h.heard()
	srv.has.Store(`{"kind":"PodList","apiVersion":"v1","items":[
  {"metadata":{"name":"two","namespace":"ns"},"spec":{"containers":[{"name":"c","image":"i"}]}},
  {"kind":"Pod","apiVersion":"v1","metadata":{"name":"local","namespace":"ns"},"spec":{"containers":[{"name":"c","image":"other"}]}}]}`)
	h.await(t, "two-n1 runs")
	h.await(t, "one-n1 is removed")
	if said := h.heard(); len(said) != 2 {
		t.Errorf("a file's pod is the server's: %q", said)
	}
	srv.has.Store("{kind: PodList, apiVersion: v1}")
	h.await(t, "two-n1 is removed")
}

// TestRemotePod: what is made of a manifest says where it is from, and is another pod when
// the manifest is.
func TestRemotePod(t *testing.T) {
	s := &Static{Node: "n1", Remote: &Remote{URL: "http://a/"}, Log: slog.New(slog.DiscardHandler)}
	uid := map[types.UID]bool{}
	for _, text := range []string{manifest("p", "i:1"), manifest("p", "i:2")} {
		pods, err := s.parse([]byte(text))
		if err != nil || len(pods) != 1 || pods[0].Name != "p-n1" || pods[0].Annotations[sourceAnnotation] != "http" {
			t.Fatalf("%v, %v", pods, err)
		}
		uid[pods[0].UID] = true
		if _, is := s.Mirror(pods[0]); !is {
			t.Error("it is shown by no mirror")
		}
	}
	if len(uid) != 2 {
		t.Errorf("%v", uid)
	}
	// Of two of a name the first runs.
	var err error
	if s.remote, err = s.parse([]byte(`{"kind":"PodList","apiVersion":"v1","items":[` + item("p", "i:1") + "," +
		item("q", "i") + "," + item("p", "i:2") + "]}")); err != nil {
		t.Fatal(err)
	}
	named := s.named()
	p := named[types.NamespacedName{Namespace: "ns", Name: "p-n1"}]
	if len(named) != 2 || p.Spec.Containers[0].Image != "i:1" {
		t.Errorf("%v", named)
	}
	_, err = s.parse([]byte("{kind: PodList, apiVersion: v1, items: [{kind: Service, apiVersion: v1}]}"))
	if err == nil || !strings.Contains(err.Error(), "items[0]") {
		t.Error(err)
	}
}

func item(pod, image string) string {
	return fmt.Sprintf(`{"metadata": {"name": %q, "namespace": "ns"}, "spec": {"containers": [{"name": "c", "image": %q}]}}`,
		pod, image)
}

// FuzzRemote: whatever a server answers makes no panic, and no pod without a name.
func FuzzRemote(f *testing.F) {
	f.Add([]byte(manifest("p", "i")))
	f.Add([]byte(`{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c"}]}}]}`))
	f.Add([]byte("{kind: PodList, apiVersion: v1, items: [null]}"))
	s := &Static{Node: "n1", Remote: &Remote{URL: "http://a/"}, Log: slog.New(slog.DiscardHandler)}
	f.Fuzz(func(t *testing.T, data []byte) {
		pods, err := s.parse(data)
		if err != nil {
			return
		}
		for _, p := range pods {
			if p.Name == "-n1" || p.UID == "" {
				t.Errorf("%+v", p)
			}
		}
	})
}

// TestSourceIsNotClaimed: a pod of the API cannot say that it is of a manifest: such pods are
// never evicted.
func TestSourceIsNotClaimed(t *testing.T) {
	for claimed, want := range map[string]string{"file": "api", "http": "api", "api": "api", "": ""} {
		var got *corev1.Pod
		a := &API{Handler: updates(func(p *corev1.Pod) { got = p }), pods: map[types.NamespacedName]types.UID{}}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}
		if claimed != "" {
			p.Annotations = map[string]string{sourceAnnotation: claimed}
		}
		if err := errors.Join(a.Add(p), a.Delete(p)); err != nil || got.Annotations[sourceAnnotation] != want {
			t.Errorf("%q: %v, %v", claimed, got, err)
		}
	}
}

// updates is a handler that is told of updates alone.
type updates func(*corev1.Pod)

func (u updates) Update(p *corev1.Pod, _ string)   { u(p) }
func (u updates) Remove(types.UID)                 {}
func (u updates) Prune(string, map[types.UID]bool) {}
