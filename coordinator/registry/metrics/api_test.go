package metrics_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	typedmetricsv1beta1 "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"

	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/registry"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.CheckOurs(m) }

var create = metav1.CreateOptions{}

// kubelet answers for a node with two pods: each of their containers uses a
// quarter of a core, the node one.
func kubelet(t *testing.T) (ip string, port int32) {
	begin := time.Now()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/stats/summary" {
			http.NotFound(w, r)
			return
		}
		now := time.Now()
		use := func(cores float64, memory int) string {
			return fmt.Sprintf(`"cpu":{"time":%q,"usageCoreNanoSeconds":%d},"memory":{"workingSetBytes":%d}`,
				now.Format(time.RFC3339), int64(cores*float64(now.Sub(begin))), memory)
		}
		pod := func(name string) string {
			return fmt.Sprintf(`{"podRef":{"name":%q,"namespace":"default","uid":"1"},
				"containers":[{"name":"b",%s},{"name":"a",%s}]}`, name, use(0.25, 1<<20), use(0.25, 1<<20))
		}
		_, _ = fmt.Fprintf(w, `{"node":{%s},"pods":[%s,%s]}`, use(1, 1<<30), pod("web"), pod("db"))
	}))
	t.Cleanup(s.Close)
	host, p, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, _ := strconv.Atoi(p)
	return host, int32(n)
}

// start runs a server with a node that answers and one that is not ready, and the
// node's pods: two that run, one that has ended, one that has no node.
func start(t *testing.T) *apitest.Server {
	ip, port := kubelet(t)
	s := apitest.Start(t, apitest.Options{Kinds: registry.Kinds(), Env: func(e *kind.Env) {
		unverified := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		t.Cleanup(unverified.CloseIdleConnections)
		e.KubeletTransport = func(string) http.RoundTripper { return unverified }
	}})
	c, ctx := s.Kubernetes(t), t.Context()
	for name, ready := range map[string]corev1.ConditionStatus{
		"up":   corev1.ConditionTrue,
		"down": corev1.ConditionFalse,
	} {
		_, err := c.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "a"}},
			Status: corev1.NodeStatus{
				Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}},
				DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: port}},
				Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
			},
		}, create)
		if err != nil {
			t.Fatal(err)
		}
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := c.CoreV1().Namespaces().Create(ctx, ns, create); err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct {
		name, node string
		phase      corev1.PodPhase
	}{{"web", "up", corev1.PodRunning}, {"db", "up", corev1.PodRunning}, {"ended", "up", corev1.PodSucceeded},
		{"unmeasured", "up", corev1.PodRunning}, {"waiting", "", corev1.PodPending}} {
		pod, err := c.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: p.name, Labels: map[string]string{"app": p.name}},
			Spec:       corev1.PodSpec{NodeName: p.node, Containers: []corev1.Container{{Name: "a", Image: "i"}}},
		}, create)
		if err != nil {
			t.Fatal(err)
		}
		pod.Status.Phase = p.phase
		if _, err := c.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// eventually polls until check has nothing to say: lists come from the watch cache.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

func get(ctx context.Context, t *testing.T, s *apitest.Server, path, accept string) (int, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestMetrics(t *testing.T) {
	s, ctx := start(t), t.Context()
	c, err := typedmetricsv1beta1.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	podNames := func(o metav1.ListOptions) (names []string) {
		t.Helper()
		list, err := c.PodMetricses("default").List(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			names = append(names, p.Name)
		}
		return names
	}
	eventually(t, "pods", func() error {
		if got := podNames(metav1.ListOptions{}); !slices.Equal(got, []string{"db", "web"}) {
			return fmt.Errorf("metrics of pods %v", got)
		}
		return nil
	})
	t.Run("Pod", func(t *testing.T) {
		p, err := c.PodMetricses("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Containers) != 2 || p.Containers[0].Name != "a" || p.Labels["app"] != "web" ||
			p.Containers[1].Usage.Memory().String() != "1Mi" || p.Window.Duration <= 0 ||
			time.Since(p.Timestamp.Time) > time.Minute {
			t.Errorf("%+v", p)
		}
		// How long the answer took to come is not known: a busy machine may be far off.
		if cpu := p.Containers[0].Usage.Cpu().MilliValue(); cpu < 50 || cpu > 1000 {
			t.Errorf("container uses %d millicores", cpu)
		}
	})
	t.Run("Selectors", func(t *testing.T) {
		for _, o := range []metav1.ListOptions{{LabelSelector: "app=web"}, {FieldSelector: "metadata.name=web"}} {
			if got := podNames(o); !slices.Equal(got, []string{"web"}) {
				t.Errorf("%+v: %v", o, got)
			}
		}
	})
	t.Run("NotFound", func(t *testing.T) {
		for name, want := range map[string]string{
			"none":  `pods.metrics.k8s.io "none" not found`,
			"ended": `pods.metrics.k8s.io "default/ended" not found`,
		} {
			_, err := c.PodMetricses("default").Get(ctx, name, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) || err.Error() != want {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := c.NodeMetricses().Get(ctx, "down", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("a node that is not ready: %v", err)
		}
	})
	t.Run("Nodes", func(t *testing.T) {
		list, err := c.NodeMetricses().List(ctx, metav1.ListOptions{LabelSelector: "zone=a"})
		if err != nil || len(list.Items) != 1 || list.Items[0].Name != "up" {
			t.Fatalf("%v, %v", list, err)
		}
		u := list.Items[0].Usage
		if cpu := u.Cpu().MilliValue(); cpu < 200 || cpu > 4000 || u.Memory().String() != "1Gi" {
			t.Errorf("%v", u)
		}
	})
	t.Run("Table", func(t *testing.T) {
		const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
		for path, want := range map[string]string{"pods/web": "2Mi", "nodes/up": "1Gi"} {
			if strings.HasPrefix(path, "pods") {
				path = "namespaces/default/" + path
			}
			code, body := get(ctx, t, s, "/apis/metrics.k8s.io/v1beta1/"+path, table)
			var got metav1.Table
			if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK {
				t.Fatalf("%d %s: %v", code, body, err)
			}
			if len(got.ColumnDefinitions) != 4 || len(got.Rows) != 1 || got.Rows[0].Cells[2] != want {
				t.Errorf("%s: %s", path, body)
			}
		}
	})
	t.Run("Replaced", func(t *testing.T) { replaced(t, s, c) })
}

// Whoever installs an APIService of the group is asked in our place, until it is
// deleted; discovery in both forms knows the group all along.
func replaced(t *testing.T, s *apitest.Server, c typedmetricsv1beta1.MetricsV1beta1Interface) {
	ctx := t.Context()
	discovered := func(when string) {
		t.Helper()
		for _, accept := range []string{"application/json",
			"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"} {
			eventually(t, when+": group in /apis as "+accept, func() error {
				if code, body := get(ctx, t, s, "/apis", accept); !strings.Contains(body, `"metrics.k8s.io"`) {
					return fmt.Errorf("%d %s", code, body)
				}
				return nil
			})
		}
	}
	discovered("ours")
	if code, body := get(ctx, t, s, "/apis/metrics.k8s.io", "application/json"); code != http.StatusOK {
		t.Errorf("group: %d %s", code, body)
	}
	aggregator, err := clientset.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	services := aggregator.ApiregistrationV1().APIServices()
	theirs := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1beta1.metrics.k8s.io"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "metrics.k8s.io", Version: "v1beta1", GroupPriorityMinimum: 100, VersionPriority: 100,
			InsecureSkipTLSVerify: true,
			Service:               &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: "metrics-server"},
		},
	}
	// It can be created, as Helm and kubectl create do: nothing of the name is there.
	if _, err := services.Create(ctx, theirs, create); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the user's server is asked", func() error {
		if _, err := c.NodeMetricses().List(ctx, metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
			return fmt.Errorf("answer: %v", err) // there is no such server
		}
		return nil
	})
	discovered("theirs")
	if err := services.Delete(ctx, theirs.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "we are asked again", func() error {
		_, err := c.NodeMetricses().List(ctx, metav1.ListOptions{})
		return err
	})
	discovered("ours again")
}
