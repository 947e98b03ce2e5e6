package reverse

import (
	"errors"
	"io"
	"net"
	"sync"
)

// Path is where a coordinator takes connections of agents; Protocol is what they change to.
const (
	Path     = "/shoal/v1/reverse"
	Protocol = "shoal-reverse-1"
)

// MaxStreams bounds the connections that one coordinator has through a node's.
const MaxStreams = 256

// Join copies between a connection and a stream of bytes in two halves until one of them
// ends, and closes both. flush is called after each piece of what goes out; nil: never.
func Join(c net.Conn, in io.ReadCloser, out io.Writer, flush func() error) {
	var wg sync.WaitGroup
	end := sync.OnceFunc(func() { _ = errors.Join(c.Close(), in.Close()) })
	wg.Go(func() {
		defer end()
		_, _ = io.Copy(c, in)
	})
	func() {
		defer end()
		buf := make([]byte, 32<<10)
		for {
			n, err := c.Read(buf)
			if n > 0 {
				if _, werr := out.Write(buf[:n]); werr != nil {
					return
				}
				if flush != nil && flush() != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	wg.Wait()
}

// Conn is one end of a pipe that tells where its other end is.
type Conn struct {
	net.Conn
	Local, Remote net.Addr
}

// LocalAddr implements net.Conn.
func (c Conn) LocalAddr() net.Addr { return c.Local }

// RemoteAddr implements net.Conn.
func (c Conn) RemoteAddr() net.Addr { return c.Remote }

// Listener hands the connections that come through to a server.
type Listener struct {
	conns chan net.Conn
	ended chan struct{}
	end   func()
}

// NewListener returns a listener.
func NewListener() *Listener {
	l := &Listener{conns: make(chan net.Conn), ended: make(chan struct{})}
	l.end = sync.OnceFunc(func() { close(l.ended) })
	return l
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error { l.end(); return nil }

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.TCPAddr{} }

// hand gives a connection to the server; false: there is none any more.
func (l *Listener) hand(c net.Conn, given <-chan struct{}) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.ended:
	case <-given:
	}
	return false
}
