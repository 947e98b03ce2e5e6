package gatewayproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// serveTCP divides the connections of a socket by what its port speaks when they come.
func (p *Proxy) serveTCP(ctx context.Context, key string, l net.Listener) {
	l = limit(l)
	web := newQueue(l.Addr())
	var serving sync.WaitGroup
	srv := p.server(key)
	serving.Go(func() { _ = srv.Serve(web) })
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				break
			}
			p.log.Warn("a connection cannot be accepted", "port", key, "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		po := p.state.Load().ports[key]
		switch {
		case po == nil || len(po.listeners) == 0:
			_ = c.Close()
		case po.listeners[0].Protocol == gatewayfeed.TCP:
			serving.Go(func() { p.stream(po.listeners[0], po.listeners[0].Streams, "", c) })
		case po.listeners[0].Protocol == gatewayfeed.HTTP:
			web.give(c)
		default:
			go p.secure(po, c, web, &serving)
		}
	}
	end, cancel := context.WithTimeout(context.Background(), DrainTime)
	defer cancel()
	_ = srv.Shutdown(end)
	web.Close()
	_ = srv.Close()
	serving.Wait()
}

// server answers requests of plain connections and of those that a handshake is done for.
func (p *Proxy) server(key string) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           handler{p, key},
		Protocols:         protocols,
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    headerBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: http2Streams},
		ErrorLog:          log.New(io.Discard, "", 0), // what clients send wrong is theirs
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if t, ok := c.(*tls.Conn); ok {
				c = t.NetConn()
			}
			if h, ok := c.(*hello); ok {
				return context.WithValue(ctx, helloKey{}, h)
			}
			return ctx
		},
	}
}

type helloKey struct{}

// hello is a connection of TLS whose client has said which name it asks for.
type hello struct {
	net.Conn
	read     io.Reader // what it said, and the rest
	name     string
	listener *listener
}

func (h *hello) Read(b []byte) (int, error) { return h.read.Read(b) }

// CloseWrite passes on that one side has nothing more to say.
func (h *hello) CloseWrite() error { return closeWrite(h.Conn) }

// secure gives a connection of TLS to the listener of its name.
func (p *Proxy) secure(po *port, c net.Conn, web *queue, serving *sync.WaitGroup) {
	_ = c.SetDeadline(time.Now().Add(headerTime))
	h, err := peek(c)
	if err != nil {
		_ = c.Close()
		return
	}
	h.listener = po.choose(h.name, func(*listener) bool { return true })
	switch {
	case h.listener == nil:
		refuse(po, c)
	case h.listener.Passthrough:
		_ = c.SetDeadline(time.Time{})
		p.stream(h.listener, h.listener.Streams, h.name, h)
	default:
		t := tls.Server(h, h.listener.tls)
		if err := t.Handshake(); err != nil {
			_ = c.Close()
			return
		}
		_ = c.SetDeadline(time.Time{})
		if h.listener.Protocol == gatewayfeed.HTTPS {
			web.give(t)
			return
		}
		p.stream(h.listener, h.listener.Streams, h.name, t)
	}
}

// unrecognizedName is the alert that nobody has the name (RFC 6066 section 3).
var unrecognizedName = []byte{21, 3, 1, 0, 2, 2, 112}

// refuse tells the client that nobody has the name; where connections are led on, it is
// refused as by a port that nobody listens on.
func refuse(po *port, c net.Conn) {
	if slices.ContainsFunc(po.listeners, func(l *listener) bool { return l.Protocol == gatewayfeed.HTTPS }) {
		_, _ = c.Write(unrecognizedName)
	} else {
		reset(c)
	}
	_ = c.Close()
}

var errPeeked = errors.New("peeked")

// peek reads the first message of TLS, which is read again by whoever gets the connection.
func peek(c net.Conn) (*hello, error) {
	var said bytes.Buffer
	var name string
	seen := false
	err := tls.Server(readOnly{io.TeeReader(c, &said), c}, &tls.Config{
		GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
			name, seen = strings.ToLower(i.ServerName), true
			return nil, errPeeked
		},
	}).Handshake()
	if !seen {
		return nil, err
	}
	return &hello{Conn: c, read: io.MultiReader(&said, c), name: name}, nil
}

// readOnly answers nothing.
type readOnly struct {
	io.Reader
	net.Conn
}

func (r readOnly) Read(b []byte) (int, error)  { return r.Reader.Read(b) }
func (r readOnly) Write(b []byte) (int, error) { return 0, io.ErrClosedPipe }

// queue gives a server connections that others accepted.
type queue struct {
	addr  net.Addr
	conns chan net.Conn
	end   chan struct{}
	once  sync.Once
}

func newQueue(a net.Addr) *queue {
	return &queue{addr: a, conns: make(chan net.Conn), end: make(chan struct{})}
}

func (q *queue) give(c net.Conn) {
	select {
	case q.conns <- c:
	case <-q.end:
		_ = c.Close()
	}
}

func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.end:
		return nil, net.ErrClosed
	}
}

func (q *queue) Addr() net.Addr { return q.addr }

func (q *queue) Close() error {
	q.once.Do(func() { close(q.end) })
	return nil
}
