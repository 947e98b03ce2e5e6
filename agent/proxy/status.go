package proxy

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/cni/nft"
)

// Status is what the proxy tells of itself over HTTP, as kube-proxy does. An empty
// address serves nothing.
type Status struct {
	// HealthzAddr answers /healthz and /livez, MetricsAddr /healthz, /proxyMode and
	// /metrics.
	HealthzAddr, MetricsAddr string
	// Metrics writes the proxy's metrics.
	Metrics func(io.Writer) error
	// Healthz and Livez count the answers by their status; nil: nobody asks.
	Healthz, Livez *metrics.Counts
	// Eligible tells whether load balancers may lead to this node.
	Eligible func() bool
}

// leaving is the taint with which the cluster autoscaler takes a node away.
const leaving = "ToBeDeletedByClusterAutoscaler"

// Eligible tells whether load balancers may lead to a node.
func Eligible(n *corev1.Node) bool {
	return n != nil && n.DeletionTimestamp.IsZero() &&
		!slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == leaving })
}

// lateAfter is how long a change may wait before the proxy counts as sick.
const lateAfter = 60 * time.Second

// progress is how far the kernel's rules follow the Services. Its zero value has
// done nothing and has nothing to do.
type progress struct {
	mu       sync.Mutex
	updated  time.Time
	waits    time.Time    // since when the oldest change does; zero: none
	families []nft.Family // never changes
}

func (p *progress) queue(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waits.IsZero() {
		p.waits = now
	}
}

func (p *progress) done(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.updated, p.waits = now, time.Time{}
}

// familyReport and report have the names of kube-proxy's answers.
type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

type report struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyReport `json:"status,omitempty"`
}

// report tells that the proxy is well while nothing waits for too long.
func (p *progress) report(now time.Time) report {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := report{LastUpdated: p.updated, CurrentTime: now, Healthy: true}
	if p.updated.IsZero() {
		return r // it starts
	}
	r.Healthy = p.waits.IsZero() || now.Sub(p.waits) < lateAfter
	r.Status = map[string]familyReport{}
	for _, f := range p.families {
		r.Status[nameOf(f)] = familyReport{p.updated, r.Healthy}
	}
	return r
}

func (p *progress) healthy() bool { return p.report(time.Now()).Healthy }

// livez tells of the proxy alone, healthz whether the node is one to lead to, too.
func (p *progress) livez(answers *metrics.Counts) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { answer(w, p.report(time.Now()), answers) }
}

func (p *progress) healthz(eligible func() bool, answers *metrics.Counts) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		r := p.report(time.Now())
		may := eligible == nil || eligible()
		r.NodeEligible = &may
		answer(w, r, answers)
	}
}

// answer tells a load balancer to come, or not to. One that may has the present as the
// time of the last update, whenever that was, as kube-proxy's do.
func answer(w http.ResponseWriter, r report, answers *metrics.Counts) {
	code := http.StatusOK
	if !r.Healthy || r.NodeEligible != nil && !*r.NodeEligible {
		code = http.StatusServiceUnavailable
	} else {
		r.LastUpdated = r.CurrentTime
	}
	answers.Inc(strconv.Itoa(code))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(r)
}

// healthPages are what anybody may ask.
func (p *Proxy) healthPages() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", p.progress.healthz(p.cfg.Status.Eligible, p.cfg.Status.Healthz))
	mux.HandleFunc("GET /livez", p.progress.livez(p.cfg.Status.Livez))
	return mux
}

// metricsPages are for this node, unless the configuration says otherwise.
func (p *Proxy) metricsPages() http.Handler {
	plain := func(write func(io.Writer) error) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			if err := write(w); err != nil {
				p.log.Debug("the answer is not complete", "err", err)
			}
		}
	}
	text := func(s string) http.HandlerFunc {
		return plain(func(w io.Writer) error {
			_, err := io.WriteString(w, s)
			return err
		})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", text("ok"))
	mux.HandleFunc("GET /proxyMode", text("nftables"))
	if p.cfg.Status.Metrics != nil {
		mux.HandleFunc("GET /metrics", plain(p.cfg.Status.Metrics))
	}
	return mux
}

// How long an address that is taken is left alone.
const (
	listenRetryMin = 5 * time.Second
	listenRetryMax = 5 * time.Minute
)

// serve answers at an address until ctx ends. Services work without it: an address
// that is taken is told of once, and tried again.
func (p *Proxy) serve(ctx context.Context, field, addr string, h http.Handler) {
	if addr == "" {
		return
	}
	srv := newHTTP(h, p.log)
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	for delay := listenRetryMin; ; delay = min(2*delay, listenRetryMax) {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		if err == nil {
			_ = srv.Serve(process.LimitConnections(l, process.ConnectionsUpTo(healthConnections)))
			return
		}
		if delay == listenRetryMin && ctx.Err() == nil {
			p.log.Warn("cannot tell how the proxy is; trying on", "field", field, "address", addr, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
	}
}

// newHTTP is a server for anybody's small requests.
func newHTTP(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    healthHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
