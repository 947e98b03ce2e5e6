package gossip

import (
	"net"
	"strings"
	"testing"
	"time"
)

// Packets and streams go from one to the other; of packets each has its own bytes.
func TestSockets(t *testing.T) {
	a, err := listen("127.0.0.1", 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Shutdown()
	b, err := listen("127.0.0.1", 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Shutdown()
	ip, port, err := b.FinalAdvertiseAddr("", 1)
	if err != nil || !ip.Equal(net.IPv4(127, 0, 0, 1)) || len(ip) != 4 || port != b.Port() {
		t.Errorf("%v %d %v", ip, port, err)
	}
	to := (&net.UDPAddr{IP: ip, Port: port}).String()
	long := strings.Repeat("x", 8000)
	for _, text := range []string{"first", long} {
		if _, err := a.WriteTo([]byte(text), to); err != nil {
			t.Fatal(err)
		}
	}
	first, second := <-b.PacketCh(), <-b.PacketCh()
	if string(first.Buf) != "first" || string(second.Buf) != long || cap(first.Buf) > 64 {
		t.Errorf("%q (%d bytes of memory), %d bytes", first.Buf, cap(first.Buf), len(second.Buf))
	}
	c, err := a.DialTimeout(to, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := <-b.StreamCh()
	defer in.Close()
	if in.LocalAddr().String() != to {
		t.Error(in.LocalAddr())
	}
}

// What nobody takes does not keep sockets from their end.
func TestSocketsEnd(t *testing.T) {
	a, err := listen("127.0.0.1", 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	to := a.tcp.Addr().String()
	if _, err := a.WriteTo([]byte("x"), to); err != nil {
		t.Fatal(err)
	}
	c, err := a.DialTimeout(to, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	time.Sleep(20 * time.Millisecond) // both wait for a reader, mostly
	if err := a.Shutdown(); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"here", ""} {
		if _, err := Listen(bad, 0, quiet); err == nil {
			t.Errorf("%q is bound", bad)
		}
	}
	if _, _, err := a.FinalAdvertiseAddr("here", 1); err == nil {
		t.Error("advertises no address")
	}
}
