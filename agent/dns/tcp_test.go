package dns

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// TestIdleConnectionsEnd: neither a silent connection nor one that sends a
// byte now and then is kept.
func TestIdleConnectionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Domain: "cluster.local", Addrs: addrs("127.0.0.1")}, fixed{testTables()})
		for name, write := range map[string]func(net.Conn){
			"silent": func(net.Conn) {},
			"slow": func(c net.Conn) {
				for range 100 {
					if _, err := c.Write([]byte{0}); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			},
		} {
			ours, theirs := net.Pipe()
			began := time.Now()
			go write(theirs)
			s.converse(t.Context(), ours, addrs("10.244.0.5")[0])
			if took := time.Since(began); took > tcpWait {
				t.Errorf("%s: open for %v", name, took)
			}
			theirs.Close()
			synctest.Wait()
			time.Sleep(2 * time.Second)
		}
	})
}

func TestLongQueryEndsConnection(t *testing.T) {
	s := New(Config{Domain: "cluster.local", Addrs: addrs("127.0.0.1")}, fixed{testTables()})
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() { _, _ = theirs.Write([]byte{0xff, 0xff}) }()
	s.converse(t.Context(), ours, addrs("10.244.0.5")[0])
	if _, err := ours.Write([]byte{0}); err == nil {
		t.Error("the connection is open")
	}
}

// TestConnectionsAreLimited: one client cannot take all connections.
func TestConnectionsAreLimited(t *testing.T) {
	s := New(Config{Domain: "cluster.local", Addrs: addrs("127.0.0.1"), Port: freePort(t)}, fixed{testTables()})
	at := startServer(t, "", s)
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	for range maxConns {
		conn, err := d.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	q := new(dns.Msg)
	q.SetQuestion("data.prod.svc.cluster.local.", dns.TypeA)
	if _, _, err := (&dns.Client{Net: "tcp"}).Exchange(q, at); err != nil {
		t.Error("another client: ", err)
	}
	s.conns.mu.Lock()
	defer s.conns.mu.Unlock()
	if n := s.conns.held[addrs("127.0.0.2")[0]]; n > maxConns/2 {
		t.Errorf("one client has %d connections", n)
	}
}
