package gatewayproxy

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// buckets are those of the seconds that answers take, as Prometheus has them by default.
var buckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// maxSeries bounds what is counted apart: listeners that came and went would add up.
const maxSeries = 4096

// Metrics counts requests and connections by listener.
type Metrics struct {
	mu          sync.Mutex
	requests    map[string]*requests // by listener and code
	connections map[string]uint64
}

type requests struct {
	count   uint64
	seconds float64
	within  [11]uint64
}

func newMetrics() *Metrics {
	return &Metrics{requests: map[string]*requests{}, connections: map[string]uint64{}}
}

func (m *Metrics) request(listener string, code int, took time.Duration) {
	key := fmt.Sprintf("listener=%q,code=\"%d\"", listener, code)
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.requests[key]
	if r == nil {
		if len(m.requests) >= maxSeries {
			return
		}
		r = &requests{}
		m.requests[key] = r
	}
	r.count++
	r.seconds += took.Seconds()
	for i, b := range buckets {
		if took.Seconds() <= b {
			r.within[i]++
		}
	}
}

func (m *Metrics) connection(listener string, led bool) {
	key := fmt.Sprintf("listener=%q,led=\"%t\"", listener, led)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.connections[key]; ok || len(m.connections) < maxSeries {
		m.connections[key]++
	}
}

// Write tells all in Prometheus' text format.
func (m *Metrics) Write(w io.Writer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	b.WriteString("# HELP shoal_gateway_request_duration_seconds Time until an answer was complete.\n" +
		"# TYPE shoal_gateway_request_duration_seconds histogram\n")
	for _, key := range slices.Sorted(maps.Keys(m.requests)) {
		r := m.requests[key]
		for i, bucket := range buckets {
			fmt.Fprintf(&b, "shoal_gateway_request_duration_seconds_bucket{%s,le=\"%g\"} %d\n", key, bucket, r.within[i])
		}
		fmt.Fprintf(&b, "shoal_gateway_request_duration_seconds_bucket{%s,le=\"+Inf\"} %d\n", key, r.count)
		fmt.Fprintf(&b, "shoal_gateway_request_duration_seconds_sum{%s} %g\n", key, r.seconds)
		fmt.Fprintf(&b, "shoal_gateway_request_duration_seconds_count{%s} %d\n", key, r.count)
	}
	b.WriteString("# HELP shoal_gateway_connections_total Connections of TCP and TLS, and clients of UDP.\n" +
		"# TYPE shoal_gateway_connections_total counter\n")
	for _, key := range slices.Sorted(maps.Keys(m.connections)) {
		fmt.Fprintf(&b, "shoal_gateway_connections_total{%s} %d\n", key, m.connections[key])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// tell counts a request, and logs it if that is asked for.
func (x *exchange) tell(r *http.Request, a *answer) {
	name, route, backend := "", "", ""
	if x.listener != nil {
		name = x.listener.Name
	}
	if x.found != nil {
		route = x.found.route.Name
	}
	if x.backend != nil {
		backend = x.backend.Key(false)
	}
	took := time.Since(x.begin)
	x.metrics.request(name, a.code, took)
	log := x.access.Load()
	if log == nil {
		return
	}
	log.Info("request", "listener", name, "route", route, "backend", backend, "client", r.RemoteAddr,
		"method", r.Method, "host", r.Host, "path", r.URL.Path, "proto", r.Proto, "code", a.code, "bytes", a.bytes,
		"userAgent", r.UserAgent(), "seconds", took.Seconds())
}
