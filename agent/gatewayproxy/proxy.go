package gatewayproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// Proxy answers on the sockets that it is given, as its configuration says. Its zero
// value is not ready; use New.
type Proxy struct {
	log     *slog.Logger
	metrics *Metrics
	access  atomic.Pointer[slog.Logger] // nil: no access log
	state   atomic.Pointer[state]
	// backends are the addresses behind each backend.
	backends atomic.Pointer[map[string][]netip.AddrPort]

	transports transports
	copies     chan struct{} // one for each copy of a request under way

	mu    sync.Mutex
	ports map[string]*served
}

// served is a socket with what serves it.
type served struct {
	close func()
	done  chan struct{}
}

// New has no socket yet.
func New(log *slog.Logger) *Proxy {
	p := &Proxy{log: log, metrics: newMetrics(), ports: map[string]*served{}, copies: make(chan struct{}, mirrors)}
	p.state.Store(&state{})
	p.backends.Store(&map[string][]netip.AddrPort{})
	return p
}

// LogAccess has each request told; nil: none.
func (p *Proxy) LogAccess(log *slog.Logger) { p.access.Store(log) }

// state is a configuration, compiled. It is never changed.
type state struct {
	ports        map[string]*port
	certificates map[string]*tls.Certificate
	authorities  map[string]*x509.CertPool
}

type port struct {
	*gatewayfeed.Port
	key       string
	listeners []*listener // the most exact name first
}

type listener struct {
	*gatewayfeed.Listener
	table *Table
	tls   *tls.Config // nil: none, or the backend's
}

// Set has a configuration count for all that comes from now on. What is wrong with a part
// of it is told, and the part does not answer.
func (p *Proxy) Set(c *gatewayfeed.Config) error {
	s := &state{
		ports:        map[string]*port{},
		certificates: map[string]*tls.Certificate{},
		authorities:  map[string]*x509.CertPool{},
	}
	var errs []error
	for name, c := range c.Certificates {
		pair, err := tls.X509KeyPair([]byte(c.Chain), []byte(c.Key))
		if err != nil {
			errs = append(errs, fmt.Errorf("certificate %s: %w", name, err))
			continue
		}
		s.certificates[name] = &pair
	}
	for name, pem := range c.Authorities {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(pem)) {
			errs = append(errs, fmt.Errorf("authority %s: no certificate", name))
		}
		s.authorities[name] = pool
	}
	for i := range c.Ports {
		po := &port{Port: &c.Ports[i], key: c.Ports[i].Key()}
		for j := range po.Listeners {
			l, err := s.listener(&po.Listeners[j])
			if err != nil {
				errs = append(errs, fmt.Errorf("listener %s: %w", po.Listeners[j].Name, err))
				continue
			}
			po.listeners = append(po.listeners, l)
		}
		slices.SortStableFunc(po.listeners, func(a, b *listener) int { return hostRank(b.Hostname) - hostRank(a.Hostname) })
		s.ports[po.key] = po
	}
	p.state.Store(s)
	p.transports.forget()
	return errors.Join(errs...)
}

// SetBackends tells the addresses behind backends, by their keys.
func (p *Proxy) SetBackends(all map[string][]netip.AddrPort) { p.backends.Store(&all) }

func (s *state) listener(l *gatewayfeed.Listener) (*listener, error) {
	l.Hostname = strings.ToLower(l.Hostname)
	out := &listener{Listener: l}
	var err error
	if out.table, err = NewTable(l.Routes); err != nil {
		return nil, err
	}
	if (l.Protocol == gatewayfeed.HTTPS || l.Protocol == gatewayfeed.TLS) && !l.Passthrough {
		out.tls, err = s.serverTLS(l)
	}
	return out, err
}

// choose finds who answers for a name: the listener with the most exact one.
func (p *port) choose(name string, ok func(*listener) bool) *listener {
	for _, l := range p.listeners {
		if ok(l) && MatchHost(l.Hostname, name, false) {
			return l
		}
	}
	return nil
}

// Add serves a socket until it is removed; a second one of a key replaces the first.
func (p *Proxy) Add(key string, l net.Listener) {
	p.add(key, l.Close, func(ctx context.Context) { p.serveTCP(ctx, key, l) })
}

// AddPacket is Add of a socket of datagrams.
func (p *Proxy) AddPacket(key string, c net.PacketConn) {
	p.add(key, c.Close, func(ctx context.Context) { p.serveUDP(ctx, key, c) })
}

func (p *Proxy) add(key string, shut func() error, serve func(context.Context)) {
	p.Remove(key)
	ctx, cancel := context.WithCancel(context.Background())
	s := &served{done: make(chan struct{}), close: func() {
		cancel()
		_ = shut()
	}}
	p.mu.Lock()
	p.ports[key] = s
	p.mu.Unlock()
	go func() {
		defer close(s.done)
		serve(ctx)
	}()
}

// Remove closes a socket. What goes over its connections may end.
func (p *Proxy) Remove(key string) {
	p.mu.Lock()
	s := p.ports[key]
	delete(p.ports, key)
	p.mu.Unlock()
	if s != nil {
		s.close()
	}
}

// Close closes all sockets, and returns when what they serve has ended or ctx does.
func (p *Proxy) Close(ctx context.Context) {
	p.mu.Lock()
	all := p.ports
	p.ports = map[string]*served{}
	p.mu.Unlock()
	for _, s := range all {
		s.close()
	}
	for _, s := range all {
		select {
		case <-s.done:
		case <-ctx.Done():
			return
		}
	}
}

// limited bounds the connections of a socket.
type limited struct {
	net.Listener
	free chan struct{}
}

func limit(l net.Listener) net.Listener { return &limited{l, make(chan struct{}, connections)} }

func (l *limited) Accept() (net.Conn, error) {
	l.free <- struct{}{}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.free
		return nil, err
	}
	return &counted{Conn: c, end: sync.OnceFunc(func() { <-l.free })}, nil
}

type counted struct {
	net.Conn
	end func()
}

func (c *counted) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// CloseWrite passes on that one side has nothing more to say.
func (c *counted) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(c net.Conn) error {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return c.Close()
}

// DrainTime is how long requests may go on after their socket was closed.
const DrainTime = 30 * time.Second

// Metrics are those of all requests and connections.
func (p *Proxy) Metrics() *Metrics { return p.metrics }
