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
		updated int // lastUpdated
	}{
		{"it starts", func() {}, 0, true, 0},
		{"the first change waits", func() { p.queue(at(1)) }, 100, true, 100},
		{"it is made", func() { p.done(at(101)) }, 300, true, 300},
		{"one waits", func() { p.queue(at(301)) }, 360, true, 360},
		{"another comes after it", func() { p.queue(at(350)) }, 361, false, 101},
		{"both are made", func() { p.done(at(362)) }, 500, true, 500},
	} {
		step.do()
		r := p.report(at(step.now))
		if r.Healthy != step.healthy || !r.LastUpdated.Equal(at(step.updated)) || !r.CurrentTime.Equal(at(step.now)) {
			t.Errorf("%s: %+v", step.name, r)
		}
	}
}

func TestHealthPages(t *testing.T) {
	may := true
	p := New(Config{Status: Status{Eligible: func() bool { return may }}})
	get := func(path string) (int, map[string]any) {
		t.Helper()
		w := httptest.NewRecorder()
		p.healthPages().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		body := map[string]any{}
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatalf("%s: %q: %v", path, w.Body, err)
		}
		return w.Code, body
	}
	p.progress.done(time.Now())
	if code, body := get("/healthz"); code != 200 || body["nodeEligible"] != true || body["lastUpdated"] == nil {
		t.Errorf("healthz of a proxy that is well: %d %v", code, body)
	}
	may = false
	if code, body := get("/healthz"); code != 503 || body["nodeEligible"] != false || body["healthy"] != true {
		t.Errorf("healthz of a node that goes: %d %v", code, body)
	}
	if code, body := get("/livez"); code != 200 || body["nodeEligible"] != nil {
		t.Errorf("livez of a node that goes: %d %v", code, body)
	}
	p.progress.queue(time.Now().Add(-time.Hour))
	if code, body := get("/livez"); code != 503 || body["healthy"] != false {
		t.Errorf("livez of a proxy that hangs: %d %v", code, body)
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
	health, metrics := free(t), free(t)
	p := New(Config{Table: "status", Status: Status{HealthzAddr: health, MetricsAddr: metrics,
		Metrics: func(w io.Writer) error { _, err := io.WriteString(w, "kubeproxy 1\n"); return err }},
		Timeouts: Timeouts{Established: 7777 * time.Second, CloseWait: 555 * time.Second}})
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
		if _, err := net.Dial("tcp", metrics); err == nil {
			t.Error("the pages are there after the end")
		}
		if err := p.Cleanup(); err != nil {
			t.Error(err)
		}
	}()
	for url, want := range map[string]string{
		"http://" + health + "/livez": `"healthy":true`, "http://" + metrics + "/proxyMode": "nftables",
		"http://" + metrics + "/healthz": "ok", "http://" + metrics + "/metrics": "kubeproxy 1\n",
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
