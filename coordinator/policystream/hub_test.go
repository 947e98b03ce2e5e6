package policystream

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/agent/policyfeed"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

// world is an API with a hub, and what one who listens was told.
type world struct {
	t      *testing.T
	client *fake.Clientset
	custom *dynamicfake.FakeDynamicClient
	hub    *Hub
	url    string
}

// established is the definition of ClusterNetworkPolicies as an API has it that serves them.
func established(t *testing.T, version string) *unstructured.Unstructured {
	var d unstructured.Unstructured
	if err := yaml.Unmarshal(clusterPolicyYAML, &d.Object); err != nil {
		t.Fatal(err)
	}
	set := func(value any, path ...string) {
		if err := unstructured.SetNestedField(d.Object, value, path...); err != nil {
			t.Fatal(err)
		}
	}
	set([]any{map[string]any{"name": version, "served": true}}, "spec", "versions")
	set([]any{map[string]any{"type": "Established", "status": "True"}}, "status", "conditions")
	return &d
}

func newWorld(t *testing.T) *world { return newWorldWith(t, established(t, "v1alpha2")) }

// newWorldWith has a definition of ClusterNetworkPolicies; nil: none.
func newWorldWith(t *testing.T, definition *unstructured.Unstructured) *world {
	w := &world{t: t, client: fake.NewClientset()}
	w.custom = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{
			definitions: "CustomResourceDefinitionList", clusterPolicies: "ClusterNetworkPolicyList",
		})
	served := definition != nil && len(list(definition, "status", "conditions")) > 0 &&
		list(definition, "spec", "versions")[0]["name"] == "v1alpha2"
	if definition != nil {
		w.must(w.custom.Resource(definitions).Create(t.Context(), definition, create))
	}
	f := informers.NewSharedInformerFactory(w.client, 0)
	var err error
	if w.hub, err = New(f, w.custom, slog.New(slog.NewTextHandler(t.Output(), nil))); err != nil {
		t.Fatal(err)
	}
	// What is made between an informer's list and its watch would be lost in the fake.
	watching := make(chan struct{}, 10)
	w.client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		i, err := w.client.Tracker().Watch(a.GetResource(), a.GetNamespace())
		watching <- struct{}{}
		return true, i, err
	})
	w.custom.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		i, err := w.custom.Tracker().Watch(a.GetResource(), a.GetNamespace())
		watching <- struct{}{}
		return true, i, err
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.hub.Run(ctx)
	}()
	f.StartWithContext(ctx)
	for range map[bool]int{true: 5, false: 4}[served] {
		<-watching
	}
	server := httptest.NewServer(w.hub)
	w.url = server.URL
	t.Cleanup(func() {
		cancel()
		<-done
		server.Close()
		f.Shutdown()
	})
	return w
}

func (w *world) must(_ any, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// listener keeps what it is told as an agent does.
type listener struct {
	t          *testing.T
	reader     *policyfeed.Reader
	group      []*policyfeed.Update
	policies   map[string]networkingv1.NetworkPolicySpec
	cluster    map[string]networkpolicy.ClusterNetworkPolicySpec
	namespaces map[string]map[string]string
	pods       map[string]policyfeed.Pod
}

func (w *world) listen() *listener {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	w.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+policyfeed.Path, nil)
	w.must(nil, err)
	resp, err := http.DefaultClient.Do(r)
	w.must(nil, err)
	w.t.Cleanup(func() { resp.Body.Close() })
	return &listener{
		t: w.t, reader: policyfeed.NewReader(resp.Body),
		policies:   map[string]networkingv1.NetworkPolicySpec{},
		cluster:    map[string]networkpolicy.ClusterNetworkPolicySpec{},
		namespaces: map[string]map[string]string{},
		pods:       map[string]policyfeed.Pod{},
	}
}

// next takes what counts together.
func (l *listener) next() {
	l.t.Helper()
	for {
		u, err := l.reader.Read()
		if err != nil {
			l.t.Fatalf("%v; until then %s", err, l)
		}
		l.group = append(l.group, u)
		if !u.More {
			break
		}
	}
	for _, u := range l.group {
		if u.Reset {
			clear(l.policies)
			clear(l.cluster)
			clear(l.namespaces)
			clear(l.pods)
		}
		for _, p := range u.Policies {
			l.policies[p.String()] = p.Spec
		}
		for _, p := range u.ClusterPolicies {
			l.cluster[p.Name] = p.Spec
		}
		for _, name := range u.GoneClusterPolicies {
			delete(l.cluster, name)
		}
		for _, n := range u.Namespaces {
			l.namespaces[n.Name] = n.Labels
		}
		for _, p := range u.Pods {
			l.pods[p.String()] = p
		}
		for _, k := range u.GonePolicies {
			delete(l.policies, k.String())
		}
		for _, k := range u.GoneNamespaces {
			delete(l.namespaces, k)
		}
		for _, k := range u.GonePods {
			delete(l.pods, k.String())
		}
	}
	l.group = nil
}

// until takes updates until a condition holds.
func (l *listener) until(what string, ok func() bool) {
	l.t.Helper()
	for !ok() {
		l.next() // fails after the request's minute
	}
	l.t.Logf("%s: %s", what, l)
}

func (l *listener) String() string {
	var names []string
	for k := range l.policies {
		names = append(names, "policy "+k)
	}
	for k, p := range l.cluster {
		names = append(names, fmt.Sprintf("cluster policy %s %d", k, p.Priority))
	}
	for k := range l.namespaces {
		names = append(names, fmt.Sprintf("namespace %s %v", k, l.namespaces[k]))
	}
	for k, p := range l.pods {
		names = append(names, fmt.Sprintf("pod %s %v %v", k, p.Addrs, p.Labels))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c"}}},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.0.9"}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

func denyAll(name string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}}
}

var (
	create = metav1.CreateOptions{}
	update = metav1.UpdateOptions{}
)

func TestStream(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	pods, policies := w.client.CoreV1().Pods("a"), w.client.NetworkingV1().NetworkPolicies("a")
	w.must(w.client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"env": "dev"}}}, create))
	w.must(pods.Create(ctx, pod("web", nil), create))
	w.must(pods.Create(ctx, pod("host", func(p *corev1.Pod) { p.Spec.HostNetwork = true }), create))
	w.must(pods.Create(ctx, pod("over", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), create))
	w.must(pods.Create(ctx, pod("unborn", func(p *corev1.Pod) { p.Status.PodIPs = nil }), create))

	l := w.listen()
	l.next()
	if got := l.String(); got != "" {
		t.Errorf("told without a policy: %s", got)
	}
	w.must(policies.Create(ctx, denyAll("deny"), create))
	all := "namespace a map[env:dev], pod a/web [10.244.0.9] map[app:web], policy a/deny"
	l.until("the first policy brings all", func() bool { return l.String() == all })
	w.must(pods.Update(ctx, pod("web", func(p *corev1.Pod) { p.Labels["tier"] = "x" }), update))
	l.until("a label", func() bool { return l.pods["a/web"].Labels["tier"] == "x" })
	w.must(pods.Update(ctx, pod("unborn", nil), update))
	l.until("an address", func() bool { return len(l.pods["a/unborn"].Addrs) == 1 })
	w.must(pods.Update(ctx, pod("unborn", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), update))
	l.until("an end", func() bool { return len(l.pods) == 1 })
	w.must(nil, pods.Delete(ctx, "web", metav1.DeleteOptions{}))
	l.until("a pod goes", func() bool { return len(l.pods) == 0 })
	bare := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	w.must(w.client.CoreV1().Namespaces().Update(ctx, bare, update))
	l.until("a namespace's labels", func() bool { return len(l.namespaces["a"]) == 0 })

	late := w.listen()
	late.next()
	if late.String() != l.String() {
		t.Errorf("who comes later is told %s, not %s", late, l)
	}
	w.must(nil, policies.Delete(ctx, "deny", metav1.DeleteOptions{}))
	l.until("the last policy takes all with it", func() bool { return len(l.policies)+len(l.namespaces) == 0 })
	late.until("for all", func() bool { return len(late.policies)+len(late.namespaces) == 0 })
}

func clusterPolicy(name string, priority int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{"tier": "Admin", "priority": priority,
			"subject": map[string]any{"namespaces": map[string]any{}}},
	}}
}

// ClusterNetworkPolicies are told as others are; the last policy of both kinds takes all
// with it.
func TestStreamOfClusterPolicies(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.must(w.client.CoreV1().Pods("a").Create(ctx, pod("web", nil), create))
	policies := w.custom.Resource(clusterPolicies)
	l := w.listen()
	l.next()
	w.must(policies.Create(ctx, clusterPolicy("c", 1), create))
	l.until("the first policy brings all", func() bool { return len(l.cluster) == 1 && len(l.pods) == 1 })
	w.must(policies.Update(ctx, clusterPolicy("c", 2), update))
	l.until("a change", func() bool { return l.cluster["c"].Priority == 2 })
	w.must(w.client.NetworkingV1().NetworkPolicies("a").Create(ctx, denyAll("deny"), create))
	l.until("the other kind", func() bool { return len(l.policies) == 1 })
	late := w.listen()
	late.next()
	if late.String() != l.String() {
		t.Errorf("who comes later is told %s, not %s", late, l)
	}
	w.must(nil, policies.Delete(ctx, "c", metav1.DeleteOptions{}))
	l.until("one kind is left", func() bool { return len(l.cluster) == 0 && len(l.pods) == 1 })
	w.must(nil, w.client.NetworkingV1().NetworkPolicies("a").Delete(ctx, "deny", metav1.DeleteOptions{}))
	l.until("the last policy takes all with it", func() bool { return l.String() == "" })
}

// Where the API has no definition of ClusterNetworkPolicies it gets one, and nobody waits
// for that; another's is left alone.
func TestDefinition(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		w := newWorldWith(t, nil)
		l := w.listen()
		l.next()
		d := established(t, "v1alpha2")
		w.must(w.custom.Resource(definitions).Get(t.Context(), d.GetName(), metav1.GetOptions{}))
		w.must(w.custom.Resource(clusterPolicies).Create(t.Context(), clusterPolicy("c", 1), create))
		w.must(w.custom.Resource(definitions).Update(t.Context(), d, update))
		l.until("served later", func() bool { return len(l.cluster) == 1 })
	})
	t.Run("another's", func(t *testing.T) {
		d := established(t, "v9")
		w := newWorldWith(t, d)
		l := w.listen()
		l.next()
		got, err := w.custom.Resource(definitions).Get(t.Context(), d.GetName(), metav1.GetOptions{})
		w.must(nil, err)
		if !reflect.DeepEqual(got, d) {
			t.Errorf("the definition became %v", got)
		}
		w.must(w.client.NetworkingV1().NetworkPolicies("a").Create(t.Context(), denyAll("deny"), create))
		l.until("NetworkPolicies are told", func() bool { return len(l.policies) == 1 })
	})
}

// A hub is idle where nodes are ready, and none listens.
func TestIdle(t *testing.T) {
	w := newWorld(t)
	<-w.hub.ready
	is := func(what string, want bool) {
		t.Helper()
		if got := w.hub.Idle(); got != want {
			t.Errorf("%s: idle: %v", what, got)
		}
	}
	is("just started", false)
	w.hub.mu.Lock()
	w.hub.since = time.Now().Add(-settled)
	w.hub.mu.Unlock()
	is("no node", false)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	w.must(w.client.CoreV1().Nodes().Create(t.Context(), node, create))
	for range 1000 {
		if nodes, err := w.hub.nodeList.List(labels.Everything()); err != nil || len(nodes) > 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	is("a node that does not listen", true)
	w.listen().next()
	is("one that does", false)
}

// The definition is the one that network-policy-api publishes.
func TestDefinitionIsUpstreams(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api").Output()
	if err != nil {
		t.Skip("no module cache: ", err)
	}
	want, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)),
		"config/crd/standard/policy.networking.k8s.io_clusternetworkpolicies.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, clusterPolicyYAML) {
		t.Error("the module has another: copy it")
	}
}

// Whatever happens, who listened from the beginning knows what who comes last does.
func TestStreamConverges(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	l := w.listen()
	l.next()
	pods, policies := w.client.CoreV1().Pods("a"), w.client.NetworkingV1().NetworkPolicies("a")
	for range 300 {
		name := fmt.Sprint("x", r.IntN(4))
		switch r.IntN(6) {
		case 0:
			_, _ = policies.Create(ctx, denyAll(name), create) // fails where it is
		case 1:
			_ = policies.Delete(ctx, name, metav1.DeleteOptions{}) // or is not
		case 2:
			_, _ = pods.Create(ctx, pod(name, nil), create)
		case 3:
			_ = pods.Delete(ctx, name, metav1.DeleteOptions{})
		default:
			_, _ = pods.Update(ctx, pod(name, func(p *corev1.Pod) { p.Labels["v"] = fmt.Sprint(r.IntN(3)) }), update)
		}
	}
	w.must(policies.Create(ctx, denyAll("last"), create))
	w.must(pods.Create(ctx, pod("last", nil), create))
	// Of the kinds each has its own order: once both marks are there, all before is.
	l.until("the end", func() bool {
		_, there := l.policies["a/last"]
		return there && len(l.pods["a/last"].Addrs) > 0
	})
	late := w.listen()
	late.next()
	if late.String() != l.String() {
		t.Errorf("who comes later is told %s, not %s", late, l)
	}
}

// An agent that does not read is let go, and costs no more.
func TestBehind(t *testing.T) {
	h := &Hub{streams: map[*stream]bool{}, log: slog.New(slog.DiscardHandler)}
	s := h.join()
	if lines, ok := h.take(s); !ok || len(lines) != 1 {
		t.Fatalf("%d lines, %v", len(lines), ok)
	}
	line := bytes.Repeat([]byte("x"), queueMost/4)
	for range 4 {
		s.add(line)
	}
	if lines, ok := h.take(s); !ok || len(lines) != 4 {
		t.Fatalf("%d lines, %v", len(lines), ok)
	}
	for range 9 {
		s.add(line)
	}
	if lines, ok := h.take(s); ok || len(lines) > 0 {
		t.Fatalf("%d lines, %v", len(lines), ok)
	}
}

func TestManyLines(t *testing.T) {
	h := &Hub{log: slog.New(slog.DiscardHandler), pods: map[policyfeed.Key]*policyfeed.Pod{}}
	for i := range 3*policyfeed.BatchObjects - 1 {
		p := policyfeed.PodOf(pod(fmt.Sprint("p", i), nil), []string{"10.0.0.1"})
		h.pods[p.Key] = p
	}
	lines := h.lines()
	if len(lines) != 3 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, line := range lines {
		u, err := policyfeed.Decode(line)
		most := min(policyfeed.BatchObjects, 3*policyfeed.BatchObjects-1-i*policyfeed.BatchObjects)
		if err != nil || u.Reset != (i == 0) || u.More != (i < 2) || len(u.Pods) != most {
			t.Errorf("line %d: reset %v, more %v, %d pods, %v", i, u.Reset, u.More, len(u.Pods), err)
		}
	}
}

func TestOnlyGet(t *testing.T) {
	w := newWorld(t)
	resp, err := http.Post(w.url+policyfeed.Path, "", nil)
	w.must(nil, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", resp.Status)
	}
}
