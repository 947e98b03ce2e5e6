package dns

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func configMap(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: configNamespace, Name: configName}, Data: data}
}

// TestFollow: the ConfigMap's servers are asked while it is there, what cannot be used
// changes nothing, what the machine's own file says goes before, and the last word
// outlasts the agent.
func TestFollow(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dns.json")
	newFollower := func() *Follower {
		s := New(Config{Domain: "cluster.local", ResolvConf: "/nonexistent", Addrs: addrs("10.96.0.10"),
			Upstreams: Upstreams{Stubs: map[string][]string{"Own.test": {"192.0.2.9"}}}}, fixed{testTables()})
		return &Follower{Server: s, File: file, Log: slog.New(slog.DiscardHandler)}
	}
	asks := func(f *Follower, name string) string {
		f.Server.up.mu.Lock()
		defer f.Server.up.mu.Unlock()
		return strings.Join(f.Server.up.serversFor(name, time.Now()), " ")
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := fake.NewClientset()
		f := newFollower()
		f.Client = client
		done := make(chan error)
		go func() { done <- f.Run(ctx) }()
		maps := client.CoreV1().ConfigMaps(configNamespace)
		settled := func(name, want string) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := asks(f, name); got != want {
				t.Errorf("%s: asks %q, want %q", name, got, want)
			}
		}
		settled("a.own.test.", "192.0.2.9:53")
		settled("a.example.com.", "")
		m := configMap(map[string]string{
			"upstreamNameservers": `["192.0.2.1", "10.96.0.10"]`,
			"stubDomains":         `{"acme.local": ["192.0.2.2:5353"], "own.test": ["192.0.2.3"]}`,
		})
		if _, err := maps.Create(ctx, m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		settled("a.example.com.", "192.0.2.1:53") // and not this server
		settled("a.acme.local.", "192.0.2.2:5353")
		settled("a.own.test.", "192.0.2.9:53")
		m = configMap(map[string]string{"stubDomains": "{"})
		if _, err := maps.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		settled("a.acme.local.", "192.0.2.2:5353")
		later := newFollower()
		if err := later.restore(); err != nil {
			t.Fatal(err)
		}
		if got := asks(later, "a.acme.local."); got != "192.0.2.2:5353" {
			t.Errorf("after a restart it asks %q", got)
		}
		if err := maps.Delete(ctx, configName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		settled("a.acme.local.", "")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if data, err := os.ReadFile(file); err != nil || strings.Contains(string(data), "acme") {
		t.Errorf("the file has %s, %v", data, err)
	}
}

func TestReadUpstreams(t *testing.T) {
	for _, x := range []struct{ key, text, want string }{
		{"stubDomains", `{"acme.local": ["192.0.2.1", "[2001:db8::1]:53"]}`, ""},
		{"stubDomains", `{"acme.local": []}`, "has no server"},
		{"stubDomains", `{"acme.local": "192.0.2.1"}`, "stubDomains: json"},
		{"stubDomains", `{".": ["192.0.2.1"]}`, "is not a domain"},
		{"stubDomains", `{"a..b": ["192.0.2.1"]}`, "is not a domain"},
		{"stubDomains", `{"svc.Cluster.local": ["192.0.2.1"]}`, "the cluster's own"},
		{"stubDomains", `{"acme.local": ["ns.acme.local"]}`, "is not an address"},
		{"upstreamNameservers", `["/etc/resolv.conf"]`, "is not an address"},
		{"upstreamNameservers", `["` + strings.Join(slices.Repeat([]string{"192.0.2.1"}, 17), `","`) + `"]`, "more than 16"},
	} {
		_, err := readUpstreams(map[string]string{x.key: x.text}, "cluster.local.")
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %v", x.text, err)
		}
	}
}
