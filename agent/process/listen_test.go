package process

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestLimits: beyond a limit connections are closed at once, and those that end
// make room.
func TestLimits(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := LimitConnections(inner, ConnectionLimits{Total: 4, PerSource: 2})
	defer l.Close()
	accepted := make(chan net.Conn)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func(from string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	taken := func(from string) net.Conn { dial(from); return <-accepted }
	refused := func(from, why string) {
		t.Helper()
		c := dial(from)
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := c.Read(make([]byte, 1)); err == nil || err != io.EOF && !isReset(err) {
			t.Errorf("%s: %v", why, err)
		}
	}
	first := taken("127.0.0.1")
	taken("127.0.0.1")
	refused("127.0.0.1", "the third of one source")
	third := taken("127.0.0.2")
	refused("127.0.0.2", "the last place for one that has another")
	taken("127.0.0.3")
	refused("127.0.0.4", "the fifth of all")
	third.Close()
	third.Close() // counts once
	taken("127.0.0.4")
	refused("127.0.0.2", "no more room than one")
	first.Close()
	taken("127.0.0.2")
}

// TestManySources: those who take all they can leave a place for the next.
func TestManySources(t *testing.T) {
	l := &limited{limits: ConnectionLimits{Total: 4096, PerSource: 682}, open: map[netip.Prefix]int{}}
	from := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}), 32)
	}
	for range 4096 {
		for i := range 110 { // as many pods as a node has
			l.take(from(i))
		}
	}
	if !l.take(from(200)) {
		t.Errorf("%d of %d places are taken, none is left for another source", l.total, l.limits.Total)
	}
}

func isReset(err error) bool {
	op, ok := err.(*net.OpError)
	return ok && !op.Timeout()
}

func TestSource(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1":          "192.0.2.1/32",
		"::ffff:192.0.2.1":   "192.0.2.1/32",
		"2001:db8::1":        "2001:db8::/64",
		"2001:db8::ffff:0:1": "2001:db8::/64",
	} {
		if got := source(&net.TCPAddr{IP: net.ParseIP(in), Port: 1}).String(); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
