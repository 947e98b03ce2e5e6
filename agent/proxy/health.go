package proxy

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/agent/service"
)

// health answers load balancers on the healthCheckNodePort of Services with
// externalTrafficPolicy Local (SVC-59, VIP-23): 200 while this node has a
// usable endpoint and the proxy is well, else 503. It listens where NodePorts
// answer. One goroutine uses it.
type health struct {
	log     *slog.Logger
	proxy   *progress
	at      []netip.Addr // an invalid one is every address
	servers map[service.Key]*healthServer
}

// Anybody may ask: a load balancer's probes are a few small requests.
const (
	healthConnections = 256
	healthHeader      = 8 << 10
)

type healthServer struct {
	key       service.Key
	port      uint16
	proxy     *progress
	local     atomic.Int64
	http      *http.Server
	listeners map[netip.Addr]net.Listener
	told      bool // that it does not answer somewhere
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
			old = h.start(s)
		}
		old.local.Store(int64(s.LocalReady))
	}
}

func (h *health) start(s *service.Service) *healthServer {
	hs := &healthServer{key: s.Key, port: s.HealthPort, proxy: h.proxy, listeners: map[netip.Addr]net.Listener{}}
	hs.http = newHTTP(hs, h.log)
	if h.servers == nil {
		h.servers = map[service.Key]*healthServer{}
	}
	h.servers[s.Key] = hs
	h.listen(hs)
	return hs
}

// move has all Services answer at these addresses, and at no others. It tries again
// where that failed before.
func (h *health) move(at []netip.Addr) {
	h.at = at
	for _, hs := range h.servers {
		h.listen(hs)
	}
}

// listen makes and closes what differs from h.at.
func (h *health) listen(hs *healthServer) {
	for a, l := range hs.listeners {
		if !slices.Contains(h.at, a) {
			_ = l.Close()
			delete(hs.listeners, a)
		}
	}
	for _, a := range h.at {
		if hs.listeners[a] != nil {
			continue
		}
		host := ""
		if a.IsValid() {
			host = a.String()
		}
		addr := net.JoinHostPort(host, strconv.Itoa(int(hs.port)))
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
		if err != nil {
			if !hs.told {
				h.log.Warn("cannot answer a load balancer's health checks; trying on", "service", hs.key, "err", err)
			}
			hs.told = true
			continue
		}
		hs.listeners[a] = l
		limited := process.LimitConnections(l, process.ConnectionsUpTo(healthConnections))
		go func() { _ = hs.http.Serve(limited) }() // ends with Close
	}
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
