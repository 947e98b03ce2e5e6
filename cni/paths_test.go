package cni

import (
	"io"
	"net"
	"testing"

	"github.com/shoal-project/shoal/cni/nstest"
)

// BenchmarkPaths sends by TCP from a pod to another node, through a router that forwards
// it: as it is, in VXLAN, and encrypted. The last one's processor is shared by all nodes
// here, as all is one machine.
//
//	go test -run none -bench Paths -benchtime 3s ./cni
func BenchmarkPaths(b *testing.B) {
	n := newNetwork(b)
	here, there, router := encrypted(b, n)
	pod, _ := attach(b, n, "a")
	for _, c := range []struct {
		path    Path
		on, off func()
	}{
		{Direct, func() { // the router knows pods, which is no part of ours
			run(b, "", "ip", "route", "add", "10.244.8.0/24", "via", "192.0.2.254")
			run(b, router, "ip", "route", "add", "10.244.8.0/24", "via", "198.51.100.1")
			run(b, router, "ip", "route", "add", "10.244.7.0/24", "via", "192.0.2.1")
		}, func() {
			run(b, "", "ip", "route", "del", "10.244.8.0/24")
			run(b, router, "ip", "route", "del", "10.244.8.0/24")
			run(b, router, "ip", "route", "del", "10.244.7.0/24")
		}},
		{VXLAN, func() { here.sync(b, there.peer()); there.sync(b, here.peer()) }, func() {}},
		{WireGuard, func() { here.sync(b, there.encrypts()); there.sync(b, here.encrypts()) }, func() {}},
	} {
		b.Run(string(c.path), func(b *testing.B) {
			c.on()
			defer c.off()
			var l net.Listener
			there.do(b, func() (err error) { l, err = net.Listen("tcp4", "10.244.8.1:81"); return err })
			defer l.Close()
			got := make(chan int64, 1)
			go func() {
				conn, err := l.Accept()
				if err != nil {
					got <- 0
					return
				}
				defer conn.Close()
				n, _ := io.Copy(io.Discard, conn)
				got <- n
			}()
			var conn net.Conn
			if err := nstest.In(pod.NetNS, func() (err error) {
				conn, err = net.Dial("tcp4", "10.244.8.1:81")
				return err
			}); err != nil {
				b.Fatal(err)
			}
			buf := make([]byte, 1<<20)
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				if _, err := conn.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
			conn.Close()
			if n := <-got; n != int64(b.N)*int64(len(buf)) {
				b.Errorf("%d bytes came of %d", n, b.N*len(buf))
			}
		})
	}
	here.sync(b)
	there.sync(b)
}
