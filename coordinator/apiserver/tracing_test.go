package apiserver_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	collectortracev1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/registry"
)

// collector takes spans as an OpenTelemetry collector does.
type collector struct {
	collectortracev1.UnimplementedTraceServiceServer
	spans chan *tracev1.ResourceSpans
}

func (c *collector) Export(ctx context.Context, r *collectortracev1.ExportTraceServiceRequest) (
	*collectortracev1.ExportTraceServiceResponse, error) {
	for _, s := range r.ResourceSpans {
		select {
		case c.spans <- s:
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
	c := &collector{spans: make(chan *tracev1.ResourceSpans, 10_000)}
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

func tracingFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tracing.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n"+text),
		0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A request comes to the collector as a tree of spans: the whole, the filters that it
// passes, and what it asks the storage.
func TestTracing(t *testing.T) {
	c, endpoint := startCollector(t)
	o := apitest.Options{Kinds: registry.Kinds(), Config: func(c *apiserver.Config) {
		c.TracingConfigFile = tracingFile(t, "endpoint: "+endpoint+"\nsamplingRatePerMillion: 1000000\n")
	}}
	s := apitest.Start(t, o)
	if _, err := s.Kubernetes(t).CoreV1().ConfigMaps("default").Create(t.Context(), configMap("traced", "v"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	traces := map[string]map[string]bool{} // by trace: the parts that were told
	whole := func() bool {
		for _, parts := range traces {
			if parts["request"] && parts["authorization"] && parts["storage"] {
				return true
			}
		}
		return false
	}
	timeout := time.After(time.Minute)
	for !whole() {
		var got *tracev1.ResourceSpans
		select {
		case got = <-c.spans:
		case <-timeout:
			t.Fatalf("no trace is whole: %v", traces)
		}
		service := ""
		for _, a := range got.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		if service != "apiserver" {
			t.Fatalf("spans are of %q", service)
		}
		for _, scope := range got.ScopeSpans {
			for _, span := range scope.Spans {
				part := ""
				switch {
				case span.Kind == tracev1.Span_SPAN_KIND_SERVER && strings.Contains(span.String(), "configmaps"):
					part = "request"
				case span.Name == "authorization":
					part = "authorization"
				case strings.Contains(span.Name, "etcd3"):
					part = "storage"
				default:
					continue
				}
				id := string(span.TraceId)
				if traces[id] == nil {
					traces[id] = map[string]bool{}
				}
				traces[id][part] = true
			}
		}
	}
}

func TestTracingRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"absent":  {"/absent", "tracingConfigFile: "},
		"rate":    {tracingFile(t, "samplingRatePerMillion: 1000001\n"), "samplingRatePerMillion"},
		"unknown": {tracingFile(t, "sampling: 1\n"), "tracingConfigFile: "},
	} {
		_, err := apiserver.New(apiserver.Config{Kinds: registry.Kinds(), TracingConfigFile: tc.file})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
