package proxy

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/service"
)

// TestProgress: a change that waits for a minute makes the proxy sick, and what
// load balancers are told.
func TestProgress(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	var p progress
	for _, step := range []struct {
		name    string
		do      func()
		now     int
		healthy bool
		updated time.Time
	}{
		{"it starts", func() {}, 0, true, time.Time{}},
		{"the first change waits", func() { p.queue(at(1)) }, 100, true, time.Time{}},
		{"it is made", func() { p.done(at(101)) }, 300, true, at(101)},
		{"one waits", func() { p.queue(at(301)) }, 360, true, at(101)},
		{"another comes after it", func() { p.queue(at(350)) }, 361, false, at(101)},
		{"both are made", func() { p.done(at(362)) }, 500, true, at(362)},
	} {
		step.do()
		r := p.report(at(step.now))
		if r.Healthy != step.healthy || !r.LastUpdated.Equal(step.updated) || !r.CurrentTime.Equal(at(step.now)) {
			t.Errorf("%s: %+v", step.name, r)
		}
	}
}

// TestHealthPages: the answers are those of kube-proxy v1.36 (pkg/proxy/healthcheck), by
// which clients go: the code, and the times, of which the last is now where it is 200.
func TestHealthPages(t *testing.T) {
	may := true
	counts := metrics.NewAgent()
	p := New(Config{Status: Status{Eligible: func() bool { return may },
		Healthz: counts.ProxyHealthz, Livez: counts.ProxyLivez}})
	updated := time.Now().Add(-time.Hour).UTC()
	get := func(what, path string, wantCode int, wantHealthy bool, wantEligible any) {
		t.Helper()
		w := httptest.NewRecorder()
		before := time.Now()
		p.healthPages().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		var body map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatalf("%s: %s: %q: %v", what, path, w.Body, err)
		}
		if w.Code != wantCode || body["healthy"] != wantHealthy || body["nodeEligible"] != wantEligible {
			t.Errorf("%s: %s: %d %v", what, path, w.Code, body)
		}
		last, err := time.Parse(time.RFC3339Nano, body["lastUpdated"].(string))
		now, err2 := time.Parse(time.RFC3339Nano, body["currentTime"].(string))
		if err != nil || err2 != nil || now.Before(before) || last.Equal(now) != (wantCode == 200) {
			t.Errorf("%s: %s: times %v", what, path, body)
		}
		if wantCode == 503 && !last.Equal(updated) {
			t.Errorf("%s: %s: lastUpdated is %s, want %s", what, path, last, updated)
		}
		family, _ := body["status"].(map[string]any)["IPv4"].(map[string]any)
		if family["healthy"] != wantHealthy || family["lastUpdated"] != updated.Format(time.RFC3339Nano) {
			t.Errorf("%s: %s: status %v", what, path, body)
		}
		if got := w.Result().Header.Get("Content-Type"); got != "application/json" {
			t.Errorf("%s: %s: %s", what, path, got)
		}
	}
	p.progress.done(updated)
	get("well", "/healthz", 200, true, true)
	get("well", "/livez", 200, true, nil)
	may = false
	get("the node goes", "/healthz", 503, true, false)
	get("the node goes", "/livez", 200, true, nil)
	p.progress.queue(updated.Add(time.Second))
	get("the proxy hangs", "/healthz", 503, false, false)
	get("the proxy hangs", "/livez", 503, false, nil)
	may = true
	get("the proxy hangs", "/healthz", 503, false, true)

	var page strings.Builder
	out := metrics.NewPage(&page)
	counts.ShowProxy(out)
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`kubeproxy_proxy_healthz_total{code="200"} 1`, `kubeproxy_proxy_healthz_total{code="503"} 3`,
		`kubeproxy_proxy_livez_total{code="200"} 2`, `kubeproxy_proxy_livez_total{code="503"} 1`} {
		if !strings.Contains(page.String(), want+"\n") {
			t.Errorf("the metrics lack %s:\n%s", want, &page)
		}
	}
}

func TestEligible(t *testing.T) {
	taint := corev1.NodeSpec{Taints: []corev1.Taint{{Key: "other"}, {Key: "ToBeDeletedByClusterAutoscaler"}}}
	gone := metav1.Now()
	for name, n := range map[string]*corev1.Node{
		"unknown": nil, "tainted": {Spec: taint}, "deleted": {ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &gone}},
	} {
		if Eligible(n) {
			t.Errorf("a node that is %s is eligible", name)
		}
	}
	if !Eligible(&corev1.Node{Spec: corev1.NodeSpec{Taints: taint.Taints[:1]}}) {
		t.Error("a node with another taint is not eligible")
	}
}

// TestRunTellsItsStatus: the pages are there while the proxy runs, and the kernel
// has its time-outs.
func TestRunTellsItsStatus(t *testing.T) {
	health, numbers := free(t), free(t)
	p := New(Config{Table: "status", Status: Status{HealthzAddr: health, MetricsAddr: numbers,
		Metrics: func(w io.Writer) error { _, err := io.WriteString(w, "kubeproxy 1\n"); return err }},
		Tracking: Tracking{Established: 7777 * time.Second, CloseWait: 555 * time.Second}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, &fixedSource{service.Build(service.Input{})}) }()
	defer func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("the proxy does not end")
		}
		if _, err := net.Dial("tcp", numbers); err == nil {
			t.Error("the pages are there after the end")
		}
		if err := p.Cleanup(); err != nil {
			t.Error(err)
		}
	}()
	for url, want := range map[string]string{
		"http://" + health + "/livez": `"healthy":true`, "http://" + numbers + "/proxyMode": "nftables",
		"http://" + numbers + "/healthz": "ok", "http://" + numbers + "/metrics": "kubeproxy 1\n",
	} {
		if got := eventually(t, url); !strings.Contains(got, want) {
			t.Errorf("%s answers %q, want %q", url, got, want)
		}
	}
	deadline := time.Now().Add(time.Minute)
	for name, want := range map[string]string{"established": "7777", "close_wait": "555"} {
		for {
			data, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_" + name)
			if err == nil && strings.TrimSpace(string(data)) == want {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("time-out %s is %q, want %s: %v", name, data, want, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// fixedSource has tables that do not change.
type fixedSource struct{ tables *service.Tables }

func (s *fixedSource) Tables() *service.Tables  { return s.tables }
func (s *fixedSource) Changed() <-chan struct{} { return nil }
func (s *fixedSource) Triggers() []time.Time    { return nil }

func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// eventually asks until somebody answers.
func eventually(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		resp, err := client.Get(url)
		if err == nil {
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			return string(body)
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
