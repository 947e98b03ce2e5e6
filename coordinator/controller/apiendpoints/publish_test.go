package apiendpoints

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// set is the names that a store leases, and who is told of changes.
type set struct {
	mu        sync.Mutex
	names     map[string]bool
	followers []func()
}

func (s *set) change(name string, there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names[name] = there; !there {
		delete(s.names, name)
	}
	for _, tell := range s.followers {
		tell()
	}
}

// seat is what one process has of a set; it is dead when it is closed.
type seat struct {
	*set
	dead chan struct{}
}

func (s seat) Hold(ctx context.Context, name string) error {
	s.change(name, true)
	select {
	case <-ctx.Done():
		s.change(name, false)
	case <-s.dead:
		time.AfterFunc(TTL, func() { s.change(name, false) })
		<-ctx.Done()
	}
	return nil
}

func (s seat) List(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.names)), nil
}

func (s seat) Follow(ctx context.Context, changed func()) error {
	s.mu.Lock()
	s.followers = append(s.followers, func() {
		select {
		case <-s.dead:
		default:
			changed()
		}
	})
	s.mu.Unlock()
	changed()
	<-ctx.Done()
	return nil
}

// coordinator is a publisher that runs.
type coordinator struct {
	seat seat
	stop func() // in order; it has returned then
}

func start(t *testing.T, s *set, client kubernetes.Interface, server string, log *slog.Logger) coordinator {
	ctx, cancel := context.WithCancel(t.Context())
	c := coordinator{seat: seat{set: s, dead: make(chan struct{})}}
	p := &Publisher{Client: client, Leases: c.seat, Server: netip.MustParseAddrPort(server), Log: log}
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	c.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	return c
}

// published prints both objects, and fails when they differ from each other.
func published(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	e, err := client.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var ips []string
	for i := range list.Items {
		for _, e := range list.Items[i].Endpoints {
			ips = append(ips, e.Addresses...)
		}
	}
	out := printSubsets(e.Subsets)
	if !strings.HasPrefix(out, strings.Join(ips, ",")+" ") {
		t.Errorf("endpoints %s, slices %v", out, ips)
	}
	return out
}

// Nobody overwrites another's address; who stops goes at once, who dies within
// TTL, and the last one leaves what is published.
func TestServersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, client := &set{names: map[string]bool{}}, fake.NewClientset()
		log := slog.New(slog.DiscardHandler)
		want := func(when, all string) {
			t.Helper()
			synctest.Wait()
			if got := published(t, client); got != all {
				t.Errorf("%s: %q, want %q", when, got, all)
			}
		}
		first := start(t, s, client, "192.0.2.1:6443", log)
		want("alone", "192.0.2.1 6443")
		second := start(t, s, client, "192.0.2.2:6443", log)
		third := start(t, s, client, "192.0.2.3:6443", log)
		want("three", "192.0.2.1,192.0.2.2,192.0.2.3 6443")
		client.ClearActions()
		time.Sleep(time.Hour)
		if n := len(client.Actions()); n > 0 {
			t.Errorf("%d requests of an hour without changes", n)
		}

		close(second.seat.dead)
		time.Sleep(TTL - time.Second)
		want("one died", "192.0.2.1,192.0.2.2,192.0.2.3 6443")
		time.Sleep(time.Second)
		want("one died long ago", "192.0.2.1,192.0.2.3 6443")
		third.stop()
		want("one has stopped", "192.0.2.1 6443")
		first.stop()
		want("all have stopped", "192.0.2.1 6443")
		first = start(t, s, client, "192.0.2.9:6443", log)
		want("at another address", "192.0.2.9 6443")
		first.stop()
		second.stop()
	})
}

// What an earlier version published, alone, becomes what is; of either family.
func TestTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		was := endpointSlices(servers([]string{"[2001:db8::1]:6443"}))[0]
		was.Namespace = "default"
		client := fake.NewClientset(was, &corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"},
			Subsets:    subsets(servers([]string{"[2001:db8::1]:6443"})),
		})
		c := start(t, &set{names: map[string]bool{}}, client, "192.0.2.1:7443", slog.New(slog.DiscardHandler))
		synctest.Wait()
		if got := published(t, client); got != "192.0.2.1 7443" {
			t.Error(got)
		}
		c.stop()
	})
}

// What could not be written is written later, and told once.
func TestTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, refused := fake.NewClientset(), 0
		client.PrependReactor("create", "endpoints", func(clienttesting.Action) (bool, runtime.Object, error) {
			if refused == 5 {
				return false, nil, nil
			}
			refused++
			return true, nil, errors.New("not now")
		})
		var said bytes.Buffer
		log := slog.New(slog.NewTextHandler(&said, nil))
		c := start(t, &set{names: map[string]bool{}}, client, "192.0.2.1:6443", log)
		time.Sleep(6 * again)
		synctest.Wait()
		if got := published(t, client); got != "192.0.2.1 6443" {
			t.Error(got)
		}
		if strings.Count(said.String(), "could not publish the API servers' addresses") != 1 {
			t.Error(said.String())
		}
		c.stop()
	})
}

// A slice that somebody took the Service's label from, which nobody finds then, gets it back.
func TestLabelIsLost(t *testing.T) {
	client := fake.NewClientset()
	p := &Publisher{
		Client: client,
		Leases: seat{set: &set{names: map[string]bool{}}, dead: make(chan struct{})},
		Server: netip.MustParseAddrPort("192.0.2.1:6443"),
		Log:    slog.New(slog.DiscardHandler),
	}
	if err := p.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := client.DiscoveryV1().EndpointSlices("default")
	s, err := all.Get(t.Context(), service, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Labels = map[string]string{"theirs": "stays"}
	if _, err := all.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err = all.Get(t.Context(), service, metav1.GetOptions{})
	if err != nil || s.Labels["kubernetes.io/service-name"] != service || s.Labels["theirs"] != "stays" {
		t.Errorf("labels %v, %v", s.Labels, err)
	}
}
