package tracing

import (
	"context"
	"log/slog"
	"sync/atomic"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

// export is the collector's method. The generated client of it, and the library's
// exporter that uses it, link an HTTP gateway and more beside it; a request is the
// same bytes as TracesData, and the answer says nothing that is needed.
const export = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

// collector sends spans; those that it cannot send are lost, and told once.
type collector struct {
	conn   *grpc.ClientConn
	log    *slog.Logger
	silent atomic.Bool
}

func dial(endpoint string, log *slog.Logger) (*collector, error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return &collector{conn: conn, log: log}, nil
}

// Start has nothing to do: the connection is made when it is needed.
func (c *collector) Start(context.Context) error { return nil }

// Stop closes the connection.
func (c *collector) Stop(context.Context) error { return c.conn.Close() }

// UploadTraces sends spans.
func (c *collector) UploadTraces(ctx context.Context, spans []*tracev1.ResourceSpans) error {
	err := c.conn.Invoke(ctx, export, &tracev1.TracesData{ResourceSpans: spans}, &emptypb.Empty{})
	switch {
	case err == nil:
		if c.silent.Swap(false) {
			c.log.Info("the trace collector takes spans again", "endpoint", c.conn.Target())
		}
	case !c.silent.Swap(true):
		c.log.Warn("spans are lost: the trace collector does not take them (is it running at tracing.endpoint?)",
			"endpoint", c.conn.Target(), "err", err)
	}
	return nil
}
