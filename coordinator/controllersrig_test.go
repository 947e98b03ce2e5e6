package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/registry"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// rig is an API server with controllers and, in place of agents, a loop
// that makes every pod run.
type rig struct {
	client  kubernetes.Interface
	config  *rest.Config
	deps    controllerDeps
	members *fakeMembers
	resign  func()
}

func newRig(t *testing.T, overHTTP bool) *rig { return newRigWith(t, overHTTP, namespaceLifecycle) }

func newRigWith(t *testing.T, overHTTP bool, plugins func(*apiserver.Server) []admission.Interface) *rig {
	used := &podUsage{begin: time.Now()}
	server := apitest.Start(t, apitest.Options{Kinds: registry.Kinds(), Admission: plugins, Env: func(e *kind.Env) {
		e.KubeletTransport = func(string) http.RoundTripper { return used }
	}})
	used.client = server.Client()
	c := &rig{client: server.Kubernetes(t), config: server.Config, members: &fakeMembers{changed: make(chan struct{}, 1)}}
	c.deps = controllerDeps{
		Client: server.Client(), Informers: server.Informers(),
		PodRanges: podRanges(config.Default(),
			[]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")}),
		ServiceCIDRs: []string{"10.96.0.0/16"},
		Config:       server.Loopback(),
		Token:        func(sa *corev1.ServiceAccount, _ *corev1.Secret) (string, error) { return sa.Name + "'s", nil },
		RootCA:       []byte("CA"), Members: c.members, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	c.deps.EndpointsPerSlice, c.deps.FinishedPods = 100, 12500
	var err error
	if c.deps.Metadata, err = server.Metadata(); err != nil {
		t.Fatal(err)
	}
	if overHTTP {
		c.deps.Config = server.Config
		c.deps.Client, c.deps.Informers = c.client, informers.NewSharedInformerFactory(c.client, 0)
		if c.deps.Metadata, err = metadata.NewForConfig(server.Config); err != nil {
			t.Fatal(err)
		}
	}
	c.deps.StartInformers = func() { c.deps.Informers.Start(t.Context().Done()) }
	c.lead(t)
	t.Cleanup(func() { c.resign() })
	go c.runPods(t.Context())
	c.systemNamespace(t, metav1.NamespaceDefault)
	return c
}

// lead starts a term: all controllers run until resign.
func (c *rig) lead(t *testing.T) {
	t.Helper()
	list, err := controllers(c.deps)
	if err != nil {
		t.Fatal(err)
	}
	c.deps.StartInformers()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, r := range list {
		running.Go(func() {
			if err := r.Run(ctx); err != nil {
				t.Errorf("%s: %v", r.Name(), err)
			}
		})
	}
	c.resign = func() { cancel(); running.Wait() }
}

// namespaceLifecycle refuses new objects in namespaces that are being deleted,
// without which their controllers would fill them again.
func namespaceLifecycle(s *apiserver.Server) []admission.Interface {
	plugin, err := lifecycle.NewLifecycle(sets.New(metav1.NamespaceDefault, metav1.NamespaceSystem))
	if err != nil {
		panic(err)
	}
	plugin.SetExternalKubeClientSet(s.Client())
	plugin.SetExternalKubeInformerFactory(s.Informers())
	return []admission.Interface{plugin}
}

// runPods answers for the agents: a pod runs as soon as it exists, or succeeds
// when its image is "done".
func (c *rig) runPods(ctx context.Context) {
	f := informers.NewSharedInformerFactory(c.client, 0)
	run := func(obj any) {
		p := obj.(*corev1.Pod).DeepCopy()
		if p.Status.Phase != corev1.PodPending || p.DeletionTimestamp != nil {
			return
		}
		p.Status.Phase = corev1.PodRunning
		p.Status.PodIP, p.Status.PodIPs = "10.1.0.1", []corev1.PodIP{{IP: "10.1.0.1"}}
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		if p.Spec.Containers[0].Image == "done" {
			p.Status.Phase, p.Status.Conditions = corev1.PodSucceeded, nil
		}
		_, _ = c.client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	}
	_, _ = f.Core().V1().Pods().Informer().
		AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: run, UpdateFunc: func(_, obj any) { run(obj) }})
	f.Start(ctx.Done())
	<-ctx.Done()
	f.Shutdown()
}

type fakeMembers struct {
	mu      sync.Mutex
	list    []gossip.Member
	changed chan struct{}
}

func (f *fakeMembers) set(list ...gossip.Member) {
	f.mu.Lock()
	f.list = list
	f.mu.Unlock()
	f.changed <- struct{}{}
}

func (f *fakeMembers) Members() []gossip.Member {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list
}

func (f *fakeMembers) Changed() <-chan struct{} { return f.changed }

// within polls until check has nothing to say.
func within(t *testing.T, what string, check func() error) {
	t.Helper()
	withinTime(t, time.Minute, what, check)
}

func withinTime(t *testing.T, limit time.Duration, what string, check func() error) {
	t.Helper()
	begin := time.Now()
	var err error
	for time.Since(begin) < limit {
		if err = check(); err == nil {
			t.Logf("%s after %v", what, time.Since(begin).Round(time.Millisecond))
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s: %v", what, err)
}

func (c *rig) namespace(t *testing.T, name string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

func template(app, image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{
				{Name: "c", Image: image, Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}}},
	}
}

func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}
