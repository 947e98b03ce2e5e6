package main

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-project/shoal/coordinator/config"
)

// TestOneSourceLeavesRoom: whoever opens as many connections to the API as it can
// takes none from others.
func TestOneSourceLeavesRoom(t *testing.T) {
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	few := before
	few.Cur = 400 // three quarters are connections, a sixth of them one source's: 50
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	l, err := listenAPI(config.Config{BindAddress: "127.0.0.1"})
	if restored := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); restored != nil {
		t.Fatal(restored)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func(from net.IP) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for range 50 {
		dial(net.IPv4(127, 0, 0, 1))
		<-accepted
	}
	last := dial(net.IPv4(127, 0, 0, 1))
	_ = last.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := last.Read(make([]byte, 1)); err == nil {
		t.Error("one connection too many was served")
	}
	dial(net.IPv4(127, 0, 0, 2))
	<-accepted
}
