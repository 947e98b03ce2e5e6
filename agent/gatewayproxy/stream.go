package gatewayproxy

import (
	"context"
	"errors"
	"io"
	"net"
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
type session struct{ net.Conn }

// serveUDP leads datagrams to backends, each client's to one, and theirs back.
func (p *Proxy) serveUDP(ctx context.Context, key string, c net.PacketConn) {
	var mu sync.Mutex
	all := map[flow]*session{}
	socket, err := newDatagrams(c)
	if err != nil {
		p.log.Error("datagrams cannot be read", "port", key, "err", err)
		return
	}
	var answers sync.WaitGroup
	defer answers.Wait()
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range all {
			_ = s.Close()
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, client, err := socket.read(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		mu.Lock()
		s := all[client]
		full := len(all) >= sessions
		mu.Unlock()
		if s == nil {
			if full {
				continue
			}
			if s = p.newSession(key); s == nil {
				continue
			}
			mu.Lock()
			all[client] = s
			mu.Unlock()
			answers.Go(func() {
				s.answer(socket, client)
				mu.Lock()
				delete(all, client)
				mu.Unlock()
			})
		}
		_ = s.SetReadDeadline(time.Now().Add(datagramIdle))
		_, _ = s.Write(buf[:n])
	}
}

func (p *Proxy) newSession(key string) *session {
	po := p.state.Load().ports[key]
	if po == nil || len(po.listeners) == 0 {
		return nil
	}
	s := streamFor(po.listeners[0].Streams, "")
	var chosen *gatewayfeed.Backend
	if s != nil {
		chosen = pick(s.Backends)
	}
	p.metrics.connection(po.listeners[0].Name, chosen != nil)
	if chosen == nil {
		return nil
	}
	for _, address := range p.endpoints(chosen, true) {
		if c, err := net.Dial("udp", address.String()); err == nil {
			return &session{Conn: c}
		}
	}
	return nil
}

// answer leads a backend's datagrams to the client until neither has any.
func (s *session) answer(c *datagrams, client flow) {
	defer s.Close()
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
