package listen

import (
	"io"
	"net"
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
	l := Limit(inner, Limits{Total: 3, PerSource: 2})
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
	refused("127.0.0.3", "the fourth of all")
	first.Close()
	first.Close() // counts once
	taken("127.0.0.1")
	refused("127.0.0.3", "no more room than one")
	third.Close()
	taken("127.0.0.3")
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
