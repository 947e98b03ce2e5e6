package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/agent/api"
)

// TestAgentFollowsCoordinators: an agent's watch goes on at the other coordinator
// when its own is killed, from where it was: nothing is listed again, nothing missed.
// When the first is back and the second goes, it does so once more. What the first one
// knows then begins with its start: if the store has been written to since the watch's
// last event, all is listed again.
func TestAgentFollowsCoordinators(t *testing.T) {
	c := embed.NewConfig()
	c.Dir = t.TempDir()
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	c.ListenClientUrls, c.AdvertiseClientUrls = anyPort, anyPort
	c.ListenPeerUrls, c.EnableGRPCGateway = nil, false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	etcd, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()
	flags := []string{"--etcd-servers", "http://" + etcd.Clients[0].Addr().String(), "--advertise-address"}

	one, other, port := t.TempDir(), t.TempDir(), freePort(t)
	begin := func() *child { return coordinator(t, one, port, append(flags, "192.0.2.1")...) }
	first := begin()
	admin := client(t, first, one, port)
	if err := os.CopyFS(other+"/coordinator/pki", os.DirFS(one+"/coordinator/pki")); err != nil {
		t.Fatal(err)
	}
	second := coordinator(t, other, port, append(flags, "192.0.2.2", "--bind-address", "127.0.0.2")...)
	addresses := []string{fmt.Sprintf("https://127.0.0.1:%d", port), fmt.Sprintf("https://127.0.0.2:%d", port)}
	config, err := clientcmd.BuildConfigFromFlags(addresses[1], one+"/admin.kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	atSecond, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ready := func(c kubernetes.Interface) func() error {
		return func() error {
			_, err := c.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
			return err
		}
	}
	soon(t, "the second is ready", ready(atSecond))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	s, lists := followingAgent(t, one, port, "1h")
	s.SetCoordinators([]api.Coordinator{{URL: addresses[0]}, {URL: addresses[1]}})
	own := cache.NewListWatchFromClient(s.Client.CoreV1().RESTClient(), "nodes", "",
		fields.OneTermEqualSelector("metadata.name", "n1"))
	informer := cache.NewSharedInformer(own, &corev1.Node{}, 0)
	go informer.RunWithContext(t.Context())
	mark := func(c kubernetes.Interface, text string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"mark":%q}}}`, text)
		_, err := c.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		soon(t, "the agent sees "+text, func() error {
			n, ok, err := informer.GetStore().GetByKey("n1")
			if err == nil && (!ok || n.(*corev1.Node).Annotations["mark"] != text) {
				err = fmt.Errorf("it has %v", n)
			}
			return err
		})
	}
	// A watch that ends within its first second and has shown nothing is no watch to the
	// library, which lists again.
	soon(t, "the agent has listed", func() error {
		if !informer.HasSynced() {
			return errors.New("not yet")
		}
		return nil
	})
	mark(admin, "both")
	first.kill()
	mark(atSecond, "without the first")
	if n := lists.Load(); n != 1 {
		t.Errorf("Nodes were listed %d times", n)
	}
	begin()
	soon(t, "the first is back", ready(admin))
	second.kill()
	mark(admin, "without the second")
}

// TestAgentRenewsItsCertificate: certificates of some seconds are followed by the next
// ones, while a watch goes on and no request fails. SHOAL_ROTATIONS has it go on for so
// many.
func TestAgentRenewsItsCertificate(t *testing.T) {
	t.Parallel()
	rotations := 1
	if text := os.Getenv("SHOAL_ROTATIONS"); text != "" {
		var err error
		if rotations, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	const life = "15s"
	dir, port := t.TempDir(), freePort(t)
	p := coordinator(t, dir, port, "--cluster-signing-duration", life)
	admin := client(t, p, dir, port)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s, _ := followingAgent(t, dir, port, life)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 2)
	go func() { ended <- s.Renew(ctx) }()
	rotated := make(chan struct{}, 1)
	go func() {
		ended <- s.Follow(ctx, func(api.Credentials) error { rotated <- struct{}{}; return nil })
	}()
	watch, err := s.Client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=n1", ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	requests := 0
	for left := rotations; left > 0; {
		select {
		case <-rotated:
			left--
		case <-time.After(20 * time.Millisecond):
		}
		if _, err := s.Client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil {
			t.Fatalf("request %d, with %d rotations to go: %v", requests, left, err)
		}
		requests++
	}
	patch := []byte(`{"metadata":{"annotations":{"mark":"the end"}}}`)
	if _, err := admin.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	marked := func(e apiwatch.Event) bool {
		n, ok := e.Object.(*corev1.Node)
		return ok && n.Annotations["mark"] == "the end"
	}
	for e := range watch.ResultChan() {
		if marked(e) {
			watch.Stop()
			cancel()
			if err := errors.Join(<-ended, <-ended); err != nil {
				t.Error(err)
			}
			t.Logf("%d rotations, %d requests", rotations, requests)
			return
		}
	}
	t.Error("the watch was dropped")
}

// followingAgent is a node's connection, and how often it listed Nodes.
func followingAgent(t *testing.T, dir string, port int, life string) (*api.Server, *atomic.Int64) {
	t.Helper()
	file := dir + "/n1.kubeconfig"
	cmd := command()
	cmd.SetArgs([]string{"kubeconfig", "--data-dir", dir, "--port", fmt.Sprint(port), "--user", "system:node:n1",
		"--group", "system:nodes", "--lifetime", life, "--out", file})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	rc, err := api.Load(file, "test")
	if err != nil {
		t.Fatal(err)
	}
	lists := &atomic.Int64{}
	rc.Wrap(func(next http.RoundTripper) http.RoundTripper { return countLists{next, lists} })
	s, err := api.Connect(api.Config{Rest: rc, Kubeconfig: file, NodeName: "n1", Rotated: dir + "/n1.pem",
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s, lists
}

type countLists struct {
	next http.RoundTripper
	n    *atomic.Int64
}

func (c countLists) RoundTrip(r *http.Request) (*http.Response, error) {
	q := r.URL.Query()
	listing := q.Get("watch") == "" || q.Get("sendInitialEvents") == "true"
	answer, err := c.next.RoundTrip(r)
	if listing && err == nil && answer.StatusCode == http.StatusOK {
		c.n.Add(1)
	}
	return answer, err
}
