package gatewayproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// stream leads a connection to a backend, and both ways until both sides have ended.
func (p *Proxy) stream(l *listener, routes []gatewayfeed.Stream, name string, c net.Conn) {
	defer c.Close()
	begin := time.Now()
	b := p.connect(streamFor(routes, name))
	p.metrics.connection(l.Name, b != nil)
	if b == nil {
		reset(c)
		return
	}
	defer b.Close()
	sent, received := pipe(c, b)
	if log := p.access.Load(); log != nil {
		log.Info("connection", "listener", l.Name, "client", c.RemoteAddr().String(), "name", name,
			"backend", b.RemoteAddr().String(), "sent", sent, "received", received, "seconds",
			time.Since(begin).Seconds())
	}
}

// connect dials a backend of a route; nil: none answers.
func (p *Proxy) connect(s *gatewayfeed.Stream) net.Conn {
	if s == nil {
		return nil
	}
	b := pick(s.Backends)
	if b == nil {
		return nil
	}
	for _, address := range p.endpoints(b, false) {
		c, err := net.DialTimeout("tcp", address.String(), dialTime)
		if err == nil {
			return c
		}
	}
	return nil
}

// reset ends a connection as one that nobody accepted.
func reset(c net.Conn) {
	if t, ok := c.(*counted); ok {
		if tcp, ok := t.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
	}
}

func pipe(a, b net.Conn) (sent, received int64) {
	var both sync.WaitGroup
	both.Go(func() { sent = copyStream(b, a) })
	both.Go(func() { received = copyStream(a, b) })
	both.Wait()
	return sent, received
}

// copyStream copies until one side has nothing more to say; then the other is told.
func copyStream(to, from net.Conn) (n int64) {
	buf := make([]byte, 32<<10)
	for {
		_ = from.SetReadDeadline(time.Now().Add(streamIdle))
		got, err := from.Read(buf)
		if got > 0 {
			_ = to.SetWriteDeadline(time.Now().Add(idleTime))
			if _, werr := to.Write(buf[:got]); werr != nil {
				_ = from.Close()
				return n
			}
			n += int64(got)
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			_ = closeWrite(to)
			return n
		default:
			_, _ = to.Close(), from.Close()
			return n
		}
	}
}

// session is a client of datagrams with its backend.
type session struct {
	net.Conn
	backend string // its key
	address netip.AddrPort
	// What says that the client may stay there: it is looked at again when either is another.
	state    *state
	backends *map[string][]netip.AddrPort
}

// sessions are the clients of a socket.
type sessions struct {
	mu  sync.Mutex
	all map[flow]*session
}

func (c *sessions) get(client flow) *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[client]
}

// put knows one more; false: there are too many.
func (c *sessions) put(client flow, s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) >= maxSessions {
		return false
	}
	c.all[client] = s
	return true
}

// end ends a session; the client may have another one by now, which goes on.
func (c *sessions) end(client flow, s *session) {
	_ = s.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all[client] == s {
		delete(c.all, client)
	}
}

func (c *sessions) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.all {
		_ = s.Close()
	}
}

// serveUDP leads datagrams to backends, each client's to one as long as that is there, and
// theirs back.
func (p *Proxy) serveUDP(ctx context.Context, key string, c net.PacketConn) {
	clients := &sessions{all: map[flow]*session{}}
	socket, err := newDatagrams(c)
	if err != nil {
		p.log.Error("datagrams cannot be read", "port", key, "err", err)
		return
	}
	var answers sync.WaitGroup
	defer answers.Wait()
	defer clients.close()
	buf := make([]byte, 64<<10)
	for {
		n, client, err := socket.read(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		s := clients.get(client)
		if s != nil && !p.stands(key, s) {
			clients.end(client, s)
			s = nil
		}
		if s == nil {
			if s = p.newSession(key); s == nil {
				continue
			}
			if !clients.put(client, s) {
				_ = s.Close()
				continue
			}
			answers.Go(func() {
				s.answer(socket, client)
				clients.end(client, s)
			})
		}
		_ = s.SetReadDeadline(time.Now().Add(datagramIdle))
		_, _ = s.Write(buf[:n])
	}
}

// datagramRoute is where a socket's clients are led now; nil: nowhere.
func (s *state) datagramRoute(key string) (*listener, *gatewayfeed.Stream) {
	po := s.ports[key]
	if po == nil || len(po.listeners) == 0 {
		return nil, nil
	}
	return po.listeners[0], streamFor(po.listeners[0].Streams, "")
}

// stands tells whether a client may stay where it is: the pod is there still, and the route
// leads to its Service. UDP has no end that would have it choose anew.
func (p *Proxy) stands(key string, s *session) bool {
	st, backends := p.state.Load(), p.backends.Load()
	if st == s.state && backends == s.backends {
		return true
	}
	_, route := st.datagramRoute(key)
	if route == nil || !slices.Contains((*backends)[s.backend], s.address) ||
		!slices.ContainsFunc(route.Backends, func(b gatewayfeed.Backend) bool {
			return b.Weight > 0 && b.Key(true) == s.backend
		}) {
		return false
	}
	s.state, s.backends = st, backends
	return true
}

func (p *Proxy) newSession(key string) *session {
	st, backends := p.state.Load(), p.backends.Load()
	l, route := st.datagramRoute(key)
	if l == nil {
		return nil
	}
	var chosen *gatewayfeed.Backend
	if route != nil {
		chosen = pick(route.Backends)
	}
	p.metrics.connection(l.Name, chosen != nil)
	if chosen == nil {
		return nil
	}
	for _, address := range p.endpoints(chosen, true) {
		if c, err := net.Dial("udp", address.String()); err == nil {
			return &session{Conn: c, backend: chosen.Key(true), address: address, state: st, backends: backends}
		}
	}
	return nil
}

// answer leads a backend's datagrams to the client until neither has any.
func (s *session) answer(c *datagrams, client flow) {
	buf := make([]byte, 64<<10)
	for {
		n, err := s.Read(buf)
		if err != nil {
			return
		}
		_ = s.SetReadDeadline(time.Now().Add(datagramIdle))
		if err := c.write(buf[:n], client); err != nil {
			return
		}
	}
}
