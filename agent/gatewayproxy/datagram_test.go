package gatewayproxy

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// echo answers each datagram with its own name.
func echo(t *testing.T, name string) netip.AddrPort {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buf := make([]byte, 64)
		for {
			_, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo([]byte(name), from)
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// TestDatagramsMove: a client of UDP stays with its pod while others come and go, and is led to
// another one when the pod is gone or the route leads elsewhere, though both pods would answer.
func TestDatagramsMove(t *testing.T) {
	r := newRig(t)
	one, two, other := echo(t, "one"), echo(t, "two"), echo(t, "other")
	b := gatewayfeed.Backend{Namespace: "ns", Service: "u", Port: 80, Weight: 1}
	elsewhere := gatewayfeed.Backend{Namespace: "ns", Service: "v", Port: 80, Weight: 1}
	pods := func(list ...netip.AddrPort) {
		r.proxy.SetBackends(map[string][]netip.AddrPort{b.Key(true): list, elsewhere.Key(true): {other}})
	}
	route := func(backends ...gatewayfeed.Backend) {
		t.Helper()
		l := gatewayfeed.Listener{Name: "u", Protocol: gatewayfeed.UDP,
			Streams: []gatewayfeed.Stream{{Backends: backends}}}
		if err := r.proxy.Set(&gatewayfeed.Config{Ports: []gatewayfeed.Port{{Number: 28001,
			Listeners: []gatewayfeed.Listener{l}}}}); err != nil {
			t.Fatal(err)
		}
	}
	front, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.proxy.AddPacket("udp/28001", front)
	c, err := net.Dial("udp", front.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	asks := func() string {
		t.Helper()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := fmt.Fprint(c, "?"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 64)
		n, err := c.Read(buf)
		if err != nil {
			return err.Error()
		}
		return string(buf[:n])
	}
	route(b)
	pods(one)
	if got := asks(); got != "one" {
		t.Fatalf("it is led to %s", got)
	}
	pods(one, two)
	for range 20 {
		if got := asks(); got != "one" {
			t.Fatalf("when another pod came it was led to %s", got)
		}
	}
	pods(two)
	if got := asks(); got != "two" {
		t.Errorf("when its pod was gone it was led to %s", got)
	}
	route(elsewhere)
	if got := asks(); got != "other" {
		t.Errorf("when the route led to another Service it was led to %s", got)
	}
}
