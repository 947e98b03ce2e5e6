package proxy

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/agent/service"
)

// health answers load balancers on the healthCheckNodePort of Services with
// externalTrafficPolicy Local (SVC-59, VIP-23): 200 while this node has a
// usable endpoint and the proxy is well, else 503. One goroutine uses it.
type health struct {
	log     *slog.Logger
	proxy   *progress
	servers map[service.Key]*healthServer
}

// Anybody may ask: a load balancer's probes are a few small requests.
const (
	healthConnections = 256
	healthHeader      = 8 << 10
)

type healthServer struct {
	key   service.Key
	port  uint16
	proxy *progress
	local atomic.Int64
	http  *http.Server
}

// sync follows the Services that changed.
func (h *health) sync(changed []service.Key, next *service.Tables) {
	for _, k := range changed {
		old, s := h.servers[k], next.Get(k)
		if old != nil && (s == nil || s.HealthPort != old.port) {
			_ = old.http.Close()
			delete(h.servers, k)
			old = nil
		}
		if s == nil || s.HealthPort == 0 {
			continue
		}
		if old == nil {
			if old = h.start(s); old == nil {
				continue
			}
		}
		old.local.Store(int64(s.LocalReady))
	}
}

func (h *health) start(s *service.Service) *healthServer {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", ":"+strconv.Itoa(int(s.HealthPort)))
	if err != nil {
		h.log.Warn("cannot answer a load balancer's health checks", "service", s.Key, "err", err)
		return nil
	}
	hs := &healthServer{key: s.Key, port: s.HealthPort, proxy: h.proxy}
	hs.http = newHTTP(hs, h.log)
	l = process.LimitConnections(l, process.ConnectionsUpTo(healthConnections))
	go func() { _ = hs.http.Serve(l) }() // ends with Close
	if h.servers == nil {
		h.servers = map[service.Key]*healthServer{}
	}
	h.servers[s.Key] = hs
	return hs
}

// ServeHTTP answers as kube-proxy does.
func (s *healthServer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	n, well := s.local.Load(), s.proxy.healthy()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(n, 10))
	if n == 0 || !well {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"service":             map[string]string{"namespace": s.key.Namespace, "name": s.key.Name},
		"localEndpoints":      n,
		"serviceProxyHealthy": well,
	})
}

func (h *health) close() {
	for _, s := range h.servers {
		_ = s.http.Close()
	}
	h.servers = nil
}
