package service

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// run starts a source and returns a wait for a condition on its tables.
func run(t *testing.T, s *Source) (func(what string, ok func(*Tables) bool), func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	changed := s.Changed()
	go func() { done <- s.Run(ctx) }()
	stop := func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	return func(what string, ok func(*Tables) bool) {
		t.Helper()
		for deadline := time.After(time.Minute); !ok(s.Tables()); {
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("%s: never; tables %v", what, s.Tables())
			}
		}
	}, stop
}

func TestSourceFollowsAndRemembers(t *testing.T) {
	ctx := context.Background()
	client := fake.NewClientset(web(nil), slice("web-1", "10.1.0.1@n1 ready"))
	file := filepath.Join(t.TempDir(), "services.json")
	s := NewSource(Config{Client: client, Node: "me", File: file})
	wait, stop := run(t, s)
	key := Key{"ns", "web"}
	backends := func(n int) func(*Tables) bool {
		return func(t *Tables) bool { return t.Get(key) != nil && len(t.Get(key).Ports[0].Cluster.Backends) == n }
	}
	wait("first endpoint", backends(1))
	other := s.Tables()
	if _, err := client.CoreV1().Services("ns").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.10", ExternalIPs: []string{"192.0.2.9"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait("second Service", func(t *Tables) bool { return t.Len() == 2 })
	if s.Tables().Get(key) != other.Get(key) {
		t.Error("a Service that did not change was rebuilt")
	}
	if _, err := client.DiscoveryV1().EndpointSlices("ns").Create(ctx, slice("web-2", "10.1.0.2@n2 ready"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait("second slice", backends(2))
	s.SetDown(map[string]bool{"n1": true})
	wait("dead node", backends(1))
	s.SetDown(nil)
	wait("node back", backends(2))
	external := func(n int) func(*Tables) bool {
		return func(t *Tables) bool { return len(t.Get(Key{"ns", "other"}).ExternalIPs) == n }
	}
	wait("external address", external(1))
	s.SetNodes([]netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.1")})
	wait("it is a node's", external(0))
	s.SetNodes(nil)
	wait("it is nobody's", external(1))
	if err := client.DiscoveryV1().EndpointSlices("ns").Delete(ctx, "web-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wait("slice deleted", backends(1))
	stop() // writes the file

	again := NewSource(Config{Node: "me", File: file})
	wait, stop = run(t, again)
	defer stop()
	wait("from the file", backends(1))
	if again.Synced() {
		t.Error("a file is not the API")
	}
}

// TestRecordedNotReady: without an API, endpoints that were not ready when the
// power went are used where no other is known; the API's word ends that.
func TestRecordedNotReady(t *testing.T) {
	for _, test := range []struct {
		name, endpoints string
		recorded        int // backends without an API
		live            int // backends when it answers with the same
	}{
		{"not ready", "10.1.0.1 notready", 1, 0},
		{"another is ready", "10.1.0.1 notready,10.1.0.2 ready", 1, 1},
		{"another serves while it ends", "10.1.0.1 notready,10.1.0.2 ending", 1, 1},
		{"it ends", "10.1.0.1 dead", 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "services.json")
			client := fake.NewClientset(web(nil), slice("web-1", strings.Split(test.endpoints, ",")...))
			backends := func(n int) func(*Tables) bool {
				return func(t *Tables) bool {
					s := t.Get(Key{"ns", "web"})
					return s != nil && len(s.Ports[0].Cluster.Backends) == n
				}
			}
			wait, stop := run(t, NewSource(Config{Client: client, Node: "me", File: file}))
			wait("from the API", backends(test.live))
			stop()
			wait, stop = run(t, NewSource(Config{Node: "me", File: file}))
			wait("from the file", backends(test.recorded))
			stop()

			s := NewSource(Config{Client: client, Node: "me", File: file})
			s.restore()
			if s.Tables() != nil {
				t.Error("tables without Services are shown while they are made")
			}
			s.rebuild()
			if !backends(test.recorded)(s.Tables()) {
				t.Errorf("restored: %v", s.Tables())
			}
			wait, stop = run(t, s)
			wait("from the API again", backends(test.live))
			stop()
		})
	}
}

func TestSourceWithDamagedFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "services.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := NewSource(Config{Client: fake.NewClientset(web(nil)), Node: "me", File: file})
	wait, stop := run(t, s)
	defer stop()
	wait("the API's state", func(t *Tables) bool { return t.Len() == 1 })
}

func TestSliceThatChangesItsService(t *testing.T) {
	s := NewSource(Config{})
	a := slice("x", "10.1.0.1 ready")
	s.putSlice(a)
	b := a.DeepCopy()
	b.Labels[discoveryv1.LabelServiceName] = "other"
	s.putSlice(b)
	if len(s.slices[Key{"ns", "web"}]) != 0 || len(s.slices[Key{"ns", "other"}]) != 1 {
		t.Errorf("got %v", s.slices)
	}
}

// TestTriggers: what changed a slice since the agent began is told once.
func TestTriggers(t *testing.T) {
	s := NewSource(Config{})
	at := func(when time.Time) *discoveryv1.EndpointSlice {
		o := slice("x", "10.1.0.1 ready")
		o.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: when.UTC().Format(time.RFC3339Nano)}
		return o
	}
	soon := s.begun.Add(time.Second)
	s.putSlice(at(s.begun.Add(-time.Hour)))
	s.putSlice(at(soon))
	s.putSlice(slice("y", "10.1.0.1 ready"))
	if got := s.Triggers(); len(got) != 1 || !got[0].Equal(soon) {
		t.Errorf("got %v, want %v", got, soon)
	}
	if got := s.Triggers(); len(got) != 0 {
		t.Errorf("told again: %v", got)
	}
	for range maxTriggers + 1 {
		s.putSlice(at(soon))
	}
	if got := s.Triggers(); len(got) != maxTriggers {
		t.Errorf("%d are kept", len(got))
	}
}

func cut(t *testing.T, file string, n int64) {
	t.Helper()
	fi, err := os.Stat(file)
	if err == nil {
		err = os.Truncate(file, fi.Size()-n)
	}
	if err != nil {
		t.Fatal(err)
	}
}
