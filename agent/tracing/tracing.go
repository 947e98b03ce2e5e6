package tracing

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
)

// DefaultEndpoint is where a collector listens.
const DefaultEndpoint = "localhost:4317"

// Config says where spans go, and of what.
type Config struct {
	// Endpoint is the collector's OTLP address; empty: DefaultEndpoint.
	Endpoint string
	// PerMillion of the traces that begin here are sampled. Those that a caller
	// began are sampled as the caller says.
	PerMillion int32
	Node       string
	Log        *slog.Logger
}

// Tracer makes spans. All of a nil Tracer's methods do nothing.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// New returns a tracer; the collector is reached for when there are spans.
func New(ctx context.Context, c Config) (*Tracer, error) {
	to, err := dial(cmp.Or(c.Endpoint, DefaultEndpoint), c.Log)
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint: %w", err)
	}
	exporter, err := otlptrace.New(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	p := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(float64(c.PerMillion)/1_000_000))),
		sdktrace.WithBatcher(exporter),
		sdktrace.WithResource(resource.NewSchemaless(semconv.ServiceName("kubelet"),
			semconv.ServiceInstanceID(c.Node), semconv.HostName(c.Node))),
	)
	return &Tracer{provider: p, tracer: p.Tracer("github.com/shoal-project/shoal/agent")}, nil
}

// Provider is for libraries that make spans of their own; nil of a nil Tracer.
func (t *Tracer) Provider() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.provider
}

// Close sends what is left, as long as ctx lasts.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Pass is a look at a pod; what is begun with the context belongs to it until the
// end is called, and after it.
func (t *Tracer) Pass(ctx context.Context, p *corev1.Pod, operation string) (context.Context, func()) {
	if t == nil {
		return ctx, func() {}
	}
	name := "syncPod"
	if operation == "kill" {
		name = "syncTerminatingPod"
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithAttributes(
		semconv.K8SPodUID(string(p.UID)),
		semconv.K8SPodName(p.Name),
		semconv.K8SNamespaceName(p.Namespace),
		attribute.String("k8s.pod", p.Namespace+"/"+p.Name),
		attribute.String("k8s.pod.update_type", operation),
	))
	return ctx, func() { span.End() }
}

// Job is what a look at a pod begins, for a container of it or, without one, for
// the whole.
func (t *Tracer) Job(ctx context.Context, kind, container string) (context.Context, func()) {
	if t == nil {
		return ctx, func() {}
	}
	ctx, span := t.tracer.Start(ctx, kind)
	if container != "" {
		span.SetAttributes(semconv.K8SContainerName(container))
	}
	return ctx, func() { span.End() }
}

// Call is a request to the runtime in process, as a client of its gRPC service
// would show it.
func (t *Tracer) Call(ctx context.Context, service, method string) (context.Context, func(*error)) {
	if t == nil {
		return ctx, func(*error) {}
	}
	ctx, span := t.tracer.Start(ctx, service+"/"+method, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(semconv.RPCService(service), semconv.RPCMethod(method)))
	return ctx, func(err *error) {
		if *err != nil {
			span.RecordError(*err)
			span.SetStatus(codes.Error, (*err).Error())
		}
		span.End()
	}
}

// Handler makes a span of each request, below that of its caller. It must come
// behind authentication: a caller decides what is sampled.
func (t *Tracer) Handler(next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return otelhttp.NewHandler(next, "kubelet", otelhttp.WithTracerProvider(t.provider),
		otelhttp.WithPropagators(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{},
			propagation.Baggage{})))
}
