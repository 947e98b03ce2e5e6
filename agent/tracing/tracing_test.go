package tracing_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	collectortracev1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/tracing"
)

// collector takes spans as an OpenTelemetry collector does.
type collector struct {
	collectortracev1.UnimplementedTraceServiceServer
	got chan *tracev1.ResourceSpans
}

func (c *collector) Export(ctx context.Context, r *collectortracev1.ExportTraceServiceRequest) (
	*collectortracev1.ExportTraceServiceResponse, error) {
	for _, s := range r.ResourceSpans {
		select {
		case c.got <- s:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &collectortracev1.ExportTraceServiceResponse{}, nil
}

func startCollector(t *testing.T) (*collector, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{got: make(chan *tracev1.ResourceSpans, 100)}
	server := grpc.NewServer()
	collectortracev1.RegisterTraceServiceServer(server, c)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		<-ended
	})
	return c, l.Addr().String()
}

// spans closes the tracer, which sends all that is left, and returns it by name.
func (c *collector) spans(t *testing.T, tr *tracing.Tracer) map[string]*tracev1.Span {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := tr.Close(ctx); err != nil {
		t.Fatal(err)
	}
	out := map[string]*tracev1.Span{}
	for {
		select {
		case r := <-c.got:
			if !strings.Contains(r.Resource.String(), `"kubelet"`) || !strings.Contains(r.Resource.String(), `"n1"`) {
				t.Errorf("spans are of %v", r.Resource)
			}
			for _, scope := range r.ScopeSpans {
				for _, s := range scope.Spans {
					out[s.Name] = s
				}
			}
		default:
			return out
		}
	}
}

func open(t *testing.T, endpoint string, perMillion int32, log *slog.Logger) *tracing.Tracer {
	t.Helper()
	c := tracing.Config{Endpoint: endpoint, PerMillion: perMillion, Node: "n1", Log: log}
	tr, err := tracing.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

var pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"}}

// work is a look at a pod with what follows from it.
func work(t *testing.T, tr *tracing.Tracer, operation string) {
	ctx, passed := tr.Pass(t.Context(), pod, operation)
	ctx, done := tr.Job(ctx, "start", "c")
	passed()
	_, end := tr.Call(ctx, "runtime.v1.RuntimeService", "StartContainer")
	err := errors.New("no such container")
	end(&err)
	done()
}

// A look at a pod, its job and the request to the runtime are one trace.
func TestPodIsTraced(t *testing.T) {
	c, endpoint := startCollector(t)
	tr := open(t, endpoint, 1_000_000, slog.New(slog.DiscardHandler))
	work(t, tr, "create")
	got := c.spans(t, tr)
	pass, job, call := got["syncPod"], got["start"], got["runtime.v1.RuntimeService/StartContainer"]
	if pass == nil || job == nil || call == nil {
		t.Fatalf("spans: %v", got)
	}
	if len(pass.ParentSpanId) != 0 || !bytes.Equal(job.ParentSpanId, pass.SpanId) ||
		!bytes.Equal(call.ParentSpanId, job.SpanId) || !bytes.Equal(call.TraceId, pass.TraceId) {
		t.Errorf("not one tree: %v", got)
	}
	for _, want := range []string{`"default/p"`, `"k8s.pod.uid"`, `"create"`} {
		if !strings.Contains(pass.String(), want) {
			t.Errorf("%s is not in %v", want, pass)
		}
	}
	if call.Kind != tracev1.Span_SPAN_KIND_CLIENT || call.Status.GetMessage() != "no such container" {
		t.Errorf("call: %v", call)
	}
}

// Whoever calls decides for what comes of the call; the rate is for what begins
// here (TRC-7).
func TestSampling(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	for name, tc := range map[string]struct {
		perMillion int32
		parent     string
		want       bool
	}{
		"none":             {0, "", false},
		"all":              {1_000_000, "", true},
		"parent, sampled":  {0, "00-" + id + "-00f067aa0ba902b7-01", true},
		"parent, not":      {1_000_000, "00-" + id + "-00f067aa0ba902b7-00", false},
		"parent, nonsense": {0, "00-zz-01", false},
	} {
		t.Run(name, func(t *testing.T) {
			c, endpoint := startCollector(t)
			tr := open(t, endpoint, tc.perMillion, slog.New(slog.DiscardHandler))
			mux := http.NewServeMux()
			mux.HandleFunc("GET /containerLogs/{pod}", func(_ http.ResponseWriter, r *http.Request) {
				_, end := tr.Call(r.Context(), "runtime.v1.RuntimeService", "ContainerStatus")
				end(new(error))
			})
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/containerLogs/secret-name", nil)
			if tc.parent != "" {
				r.Header.Set("traceparent", tc.parent)
			}
			tr.Handler(mux).ServeHTTP(httptest.NewRecorder(), r)
			got := c.spans(t, tr)
			if (len(got) == 2) != tc.want || !tc.want && len(got) != 0 {
				t.Fatalf("spans: %v", got)
			}
			if !tc.want {
				return
			}
			served := got["GET /containerLogs/{pod}"]
			if served == nil || served.Kind != tracev1.Span_SPAN_KIND_SERVER {
				t.Fatalf("spans: %v", got)
			}
			call := got["runtime.v1.RuntimeService/ContainerStatus"]
			if !bytes.Equal(call.ParentSpanId, served.SpanId) {
				t.Errorf("the call is not the request's: %v", got)
			}
		})
	}
}

// Without a collector spans are lost, and that is told once.
func TestCollectorIsAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	var out bytes.Buffer
	tr := open(t, l.Addr().String(), 1_000_000, slog.New(slog.NewTextHandler(&out, nil)))
	flush := tr.Provider().(interface{ ForceFlush(context.Context) error })
	for range 3 {
		work(t, tr, "sync")
		if err := flush.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), "tracing.endpoint") {
		t.Errorf("logged:\n%s", out.String())
	}
}

// What is off does nothing, and keeps nothing.
func TestOff(t *testing.T) {
	var tr *tracing.Tracer
	h := http.NewServeMux()
	if tr.Handler(h) != http.Handler(h) || tr.Provider() != nil || tr.Close(t.Context()) != nil {
		t.Error("not off")
	}
	if n := testing.AllocsPerRun(100, func() {
		ctx, end := tr.Call(t.Context(), "s", "m")
		_, passed := tr.Pass(ctx, pod, "sync")
		passed()
		end(new(error))
	}); n > 1 { // the error's
		t.Errorf("%v allocations", n)
	}
}
