package process

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ConnectionLimits are numbers of connections that are open at once. A source gets another
// one while it has fewer than PerSource, and fewer than are free: however many
// sources take all they can, the next still finds a place.
type ConnectionLimits struct {
	Total     int
	PerSource int
}

// ConnectionsUpTo returns limits for a server that may take most of the files that the
// process can open, and at most `most` connections. One source gets a sixth, so
// that no single one leaves nothing to the others.
func ConnectionsUpTo(most int) ConnectionLimits {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil && files.Cur/4*3 < uint64(most) {
		most = int(files.Cur / 4 * 3)
	}
	return ConnectionLimits{Total: most, PerSource: max(most/6, 1)}
}

// LimitConnections returns l with the limits: what is beyond them is closed at once, with
// no byte read.
func LimitConnections(l net.Listener, limits ConnectionLimits) net.Listener {
	return &limited{Listener: l, limits: limits, open: map[netip.Prefix]int{}}
}

type limited struct {
	net.Listener
	limits ConnectionLimits

	mu    sync.Mutex
	total int
	open  map[netip.Prefix]int
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := source(c.RemoteAddr())
		if l.take(from) {
			return &conn{Conn: c, release: sync.OnceFunc(func() { l.release(from) })}, nil
		}
		_ = c.Close()
	}
}

func (l *limited) take(from netip.Prefix) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[from] >= min(l.limits.PerSource, l.limits.Total-l.total) {
		return false
	}
	l.total++
	l.open[from]++
	return true
}

func (l *limited) release(from netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.open[from]--; l.open[from] == 0 {
		delete(l.open, from)
	}
}

// source is an IPv4 address, or the /64 that one IPv6 host may take all
// addresses of (RFC 4291, section 2.5.4).
func source(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

type conn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.release()
	return c.Conn.Close()
}

// Hurry gives a client a while for the rest of its request, and to take the
// answer. It is for requests that are refused: net/http reads what is left of a
// body before it sends the answer, for as long as the client takes to send it.
func Hurry(w http.ResponseWriter, r *http.Request, wait time.Duration) {
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close") // the answer goes out at once
	}
	c := http.NewResponseController(w)
	end := time.Now().Add(wait)
	// Not every writer has deadlines: one in memory waits for nobody.
	_, _ = c.SetReadDeadline(end), c.SetWriteDeadline(end)
}
