package main

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/tests/dashboards"
)

// TestMetrics: what rules and dashboards read of a control plane is there.
func TestMetrics(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	scheduler, controllers := freePort(t), freePort(t)
	p := coordinator(t, dir, port, "--scheduler-port", fmt.Sprint(scheduler),
		"--controller-manager-port", fmt.Sprint(controllers))
	c := client(t, p, dir, port)
	exercise(t, c)
	for _, port := range []int{scheduler, controllers} {
		checkMonitor(t, dir, port)
	}
	for _, server := range []string{"apiserver", "controllers", "scheduler"} {
		eventually(t, "all that dashboards read of "+server, func() string {
			missing := dashboards.Missing(metricsPage(t, c, "/metrics"), server)
			// The first request that is refused for overload makes a series.
			return strings.TrimPrefix(strings.Join(missing, " "), "apiserver_request_terminations_total")
		})
	}
	page := metricsPage(t, c, "/metrics")
	eventually(t, "all families of upstream's API server", func() string {
		return wrongFamilies(metricsPage(t, c, "/metrics"))
	})
	if resources := metricsPage(t, c, "/metrics/resources"); !strings.Contains(resources, "kube_pod_resource_request{") {
		t.Errorf("/metrics/resources: %s", resources)
	}
	for _, want := range []string{
		`scheduler_queue_incoming_pods_total{event="UnschedulablePodAdd",queue="active"} `,
		`scheduler_goroutines{operation="binding"} 0`,
		`apiserver_resource_objects{group="",resource="nodes"} 1`,
		`leader_election_master_status{name="shoal-coordinator"} 1`,
		`kubernetes_build_info{`,
		`git_version="v1.36.`,
		`apiserver_storage_size_bytes{storage_cluster_id="etcd-0"} `,
		`workqueue_adds_total{name="deployment"} `,
		`workqueue_adds_total{name="nodehealth"} `,
		`scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 1`,
		`scheduler_pending_pods{queue="gated"} 1`,
		`scheduler_pending_pods{queue="unschedulable"} 1`,
		`scheduler_unschedulable_pods{plugin="NodeResourcesFit",profile="default-scheduler"} 1`,
		`scheduler_scheduler_cache_size{type="nodes"} 1`,
		`rest_client_requests_total{code="200",host="shoal.internal",method="GET"} `,
		`# TYPE go_gc_duration_seconds `,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	if size := "apiserver_storage_size_bytes{storage_cluster_id=\"etcd-0\"} 0\n"; strings.Contains(page, size) {
		t.Error("the store has no size")
	}
	slis := metricsPage(t, c, "/metrics/slis")
	if !strings.Contains(slis, `kubernetes_healthcheck{name="ping",type="readyz"} 1`) {
		t.Errorf("/metrics/slis is\n%s", slis)
	}
}

// TestMetricSettings: MET-14, MET-15. A family that is disabled is on no page, whoever makes
// it, and labels have no values but those that are allowed.
func TestMetricSettings(t *testing.T) {
	dir, port, scheduler := t.TempDir(), freePort(t), freePort(t)
	p := coordinator(t, dir, port, "--scheduler-port", fmt.Sprint(scheduler),
		"--disabled-metrics", "apiserver_request_total,workqueue_depth,scheduler_pending_pods,go_goroutines",
		"--allow-metric-labels", "apiserver_response_sizes,verb=GET,PUT")
	c := client(t, p, dir, port)
	if _, err := c.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	page := metricsPage(t, c, "/metrics")
	const sizes = `apiserver_response_sizes_count{component="apiserver",group="",resource="namespaces",` +
		`scope="cluster",subresource="",verb=`
	for _, want := range []string{
		"\nworkqueue_adds_total{", "\ngo_threads ", "\ndisabled_metrics_total 4\n", sizes + `"unexpected"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
	for _, none := range []string{
		"\napiserver_request_total", "\nworkqueue_depth", "\nscheduler_pending_pods", "\ngo_goroutines", sizes + `"LIST"`,
	} {
		if i := strings.Index(page, none); i >= 0 {
			t.Errorf("/metrics has %q: %.200s", none, page[i:])
		}
	}
}

// TestMetricSettingsAreChecked: MET-6. What cannot be is told with its field.
func TestMetricSettingsAreChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "labels.yaml")
	if err := os.WriteFile(file, []byte("'a_total,verb': 'GET,PUT'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"a_total,verb": "GET"}
	for _, c := range []struct {
		config.Metrics
		want string
	}{
		{config.Metrics{ShowHiddenMetricsForVersion: "1.35", DisabledMetrics: []string{"a_total"}}, ""},
		{config.Metrics{AllowMetricLabelsManifest: file}, ""},
		{config.Metrics{AllowMetricLabels: labels}, ""},
		{config.Metrics{ShowHiddenMetricsForVersion: "1.36"}, "showHiddenMetricsForVersion \"1.36\": give 1.35"},
		{config.Metrics{ShowHiddenMetricsForVersion: "1.34"}, "showHiddenMetricsForVersion"},
		{config.Metrics{ShowHiddenMetricsForVersion: "1.35.1"}, "showHiddenMetricsForVersion"},
		{config.Metrics{DisabledMetrics: []string{"a-total"}}, "disabledMetrics: "},
		{config.Metrics{AllowMetricLabels: map[string]string{"a_total": "GET"}}, "allowMetricLabels: "},
		{config.Metrics{AllowMetricLabelsManifest: file + "x"}, "allowMetricLabelsManifest: "},
		{config.Metrics{AllowMetricLabels: labels, AllowMetricLabelsManifest: file}, "not both"},
	} {
		err := checkMetrics(c.Metrics)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.Metrics, err, c.want)
		}
	}
}

// checkMonitor asks a port for monitoring: it serves metrics to who may read them,
// health to everybody and nothing else to anybody.
func checkMonitor(t *testing.T, dir string, port int) {
	t.Helper()
	admin, err := clientcmd.BuildConfigFromFlags("", dir+"/admin.kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	admin.Host = fmt.Sprintf("https://127.0.0.1:%d", port)
	for _, tt := range []struct {
		config *rest.Config
		method string
		path   string
		want   int
	}{
		{admin, http.MethodGet, "/metrics", http.StatusOK},
		{admin, http.MethodGet, "/metrics/slis", http.StatusOK},
		{admin, http.MethodGet, "/healthz", http.StatusOK},
		{admin, http.MethodGet, "/api/v1/secrets", http.StatusNotFound},
		{admin, http.MethodGet, "/metrics/", http.StatusNotFound},
		{admin, http.MethodPost, "/metrics", http.StatusNotFound},
		{rest.AnonymousClientConfig(admin), http.MethodGet, "/healthz", http.StatusOK},
		{rest.AnonymousClientConfig(admin), http.MethodGet, "/metrics", http.StatusForbidden},
	} {
		h, err := rest.HTTPClientFor(tt.config)
		if err != nil {
			t.Fatal(err)
		}
		h.Timeout = time.Minute
		what := fmt.Sprintf("%s %s of %q on a port for monitoring", tt.method, tt.path, tt.config.CertFile)
		eventually(t, what, func() string { // its store may be slow for a moment, and /healthz says so
			request, err := http.NewRequest(tt.method, admin.Host+tt.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := h.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			switch answer.StatusCode {
			case tt.want:
				return ""
			case http.StatusInternalServerError:
				return answer.Status
			}
			t.Errorf("%s: %s, want %d", what, answer.Status, tt.want)
			return ""
		})
	}
}

// exercise has the scheduler place a pod, refuse one and leave one at its gate.
func exercise(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	ctx := context.Background()
	has := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"),
		corev1.ResourcePods: resource.MustParse("10"),
	}
	node, err := c.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status: corev1.NodeStatus{Capacity: has, Allocatable: has, Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(),
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Not ready before nodes are looked at.
	always := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	pod := func(name string, change func(*corev1.PodSpec)) {
		spec := corev1.PodSpec{Tolerations: always, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		change(&spec)
		if _, err := c.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec,
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the default service account", func() string {
		if _, err := c.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	pod("fits", func(*corev1.PodSpec) {})
	pod("large", func(s *corev1.PodSpec) {
		s.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
	})
	pod("gated", func(s *corev1.PodSpec) { s.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/gate"}} })
	eventually(t, "a pod on "+node.Name+", and one refused", func() string {
		fits, err := c.CoreV1().Pods("default").Get(ctx, "fits", metav1.GetOptions{})
		if err != nil || fits.Spec.NodeName == "" {
			return "fits waits"
		}
		large, err := c.CoreV1().Pods("default").Get(ctx, "large", metav1.GetOptions{})
		if err != nil || len(large.Status.Conditions) == 0 {
			return "large waits"
		}
		return ""
	})
	unavailable(t, c)
}

// unavailable registers an API that nobody serves, and says for a moment that
// somebody does.
func unavailable(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	const services = "/apis/apiregistration.k8s.io/v1/apiservices"
	rest := c.Discovery().RESTClient()
	service := `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.example.com"},
		"spec":{"group":"example.com","version":"v1","groupPriorityMinimum":1000,"versionPriority":10,
		"insecureSkipTLSVerify":true,"service":{"name":"none","namespace":"default"}}}`
	if _, err := rest.Post().AbsPath(services).Body([]byte(service)).SetHeader("Content-Type", "application/json").
		DoRaw(context.Background()); err != nil {
		t.Fatal(err)
	}
	status := `{"status":{"conditions":[{"type":"Available","status":"True","reason":"Passed","message":"",
		"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
	if _, err := rest.Patch(types.MergePatchType).AbsPath(services + "/v1.example.com/status").Body([]byte(status)).
		DoRaw(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func metricsPage(t *testing.T, c kubernetes.Interface, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	page, err := c.Discovery().RESTClient().Get().AbsPath(path).DoRaw(ctx)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return string(page)
}

// eventually waits until missing tells of nothing any more.
func eventually(t *testing.T, what string, missing func() string) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		lacks := missing()
		if lacks == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not seen in time: %s; %s", what, lacks)
		}
	}
}

//go:embed testdata/families.txt
var families string

// wrongFamilies holds the families of a page against those of upstream's API server:
// each line of the file is one, with a reason where it is not here, in parentheses
// where it may not be here yet.
func wrongFamilies(page string) string {
	here := map[string]bool{}
	for line := range strings.Lines(page) {
		if f := strings.Fields(line); len(f) == 4 && f[1] == "TYPE" {
			here[f[2]] = true
		}
	}
	var wrong []string
	for line := range strings.Lines(families) {
		name, reason, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case reason == "" && !here[name]:
			wrong = append(wrong, "no "+name)
		case reason != "" && !strings.HasPrefix(reason, "(") && here[name]:
			wrong = append(wrong, name+" is here, but "+reason)
		}
	}
	return strings.Join(wrong, "; ")
}
