package apiserver

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// newTracer sends spans where a TracingConfiguration file says; it is nil without a
// file. The collector is reached for when there are spans.
func newTracer(file, server string) (tracing.TracerProvider, error) {
	if file == "" {
		return nil, nil
	}
	c, err := options.ReadTracingConfiguration(file)
	if err != nil {
		return nil, fmt.Errorf("tracingConfigFile: %w", err)
	}
	if errs := tracingapi.ValidateTracingConfiguration(c, utilfeature.DefaultFeatureGate, nil); len(errs) > 0 {
		return nil, fmt.Errorf("tracingConfigFile %s: %w", file, errs.ToAggregate())
	}
	tracer, err := tracing.NewProvider(context.Background(), c, nil, []resource.Option{resource.WithAttributes(
		semconv.ServiceNameKey.String("apiserver"), semconv.ServiceInstanceIDKey.String(server))})
	if err != nil {
		return nil, fmt.Errorf("tracingConfigFile %s: %w", file, err)
	}
	return tracer, nil
}

// tracerProvider is never nil.
func (s *Server) tracerProvider() trace.TracerProvider {
	if s.tracer == nil {
		return nooptrace.NewTracerProvider()
	}
	return s.tracer
}
