package dns

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/shoal-project/shoal/agent/service"
)

// TestRegain: who waited for the network waits for its turn before it goes on,
// with others' work counted as before.
func TestRegain(t *testing.T) {
	q := newQueue(1, 10)
	a, b := addrs("10.0.0.1")[0], addrs("10.0.0.2")[0]
	released, goOn, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	q.places.take(a)
	q.add(a, func(s *slot) {
		s.release()
		close(released)
		<-goOn
		s.regain(a)
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.free != 0 {
			t.Errorf("%d slots are free while it works", q.free)
		}
		close(over)
	})
	<-released
	blocked := make(chan struct{})
	q.places.take(b)
	q.add(b, func(*slot) {
		close(goOn)
		select {
		case <-over:
			t.Error("two work in one slot")
		case <-time.After(20 * time.Millisecond):
		}
		close(blocked)
	})
	<-blocked
	<-over
	q.running.Wait()
	if q.free != 1 || q.places.free != 10 || len(q.clients) != 0 {
		t.Errorf("%d slots and %d places are free, %d clients wait", q.free, q.places.free, len(q.clients))
	}
}

// TestLargeForeignAnswers: who serves a zone chooses how much its answers are
// to read. They come whole, and are read in the client's turn.
func TestLargeForeignAnswers(t *testing.T) {
	const records = 3000
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	question := new(dns.Msg)
	question.SetQuestion("large.example.com.", dns.TypeA)
	large := new(dns.Msg)
	large.SetReply(question)
	large.Compress = true
	for i := range records {
		large.Answer = append(large.Answer,
			&dns.A{Hdr: header("large.example.com.", dns.TypeA), A: net.IPv4(10, 0, byte(i>>8), byte(i))})
	}
	packed, err := large.Pack()
	if err != nil {
		t.Fatal(err)
	}
	srv := &dns.Server{Listener: l, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		_, _ = w.Write(append(binary.BigEndian.AppendUint16(nil, q.Id), packed[2:]...))
	})}
	go func() { _ = srv.ActivateAndServe() }()
	t.Cleanup(func() { l.Close() })
	s := New(Config{Domain: "cluster.local", Addrs: addrs("127.0.0.1"), Port: freePort(t)}, fixed{testTables()})
	s.up.servers, s.up.read = []string{l.Addr().String()}, time.Now().Add(time.Hour)
	at := startServer(t, "", s)
	done := make(chan error)
	const clients = 8
	for range clients {
		go func() {
			q := question.Copy()
			q.Id = dns.Id()
			r, _, err := (&dns.Client{Net: "tcp", Timeout: 30 * time.Second}).Exchange(q, at)
			if err == nil && len(r.Answer) != records {
				err = fmt.Errorf("%d records, %s", len(r.Answer), dns.RcodeToString[r.Rcode])
			}
			done <- err
		}()
	}
	for range clients {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	s.queue.running.Wait() // an answer leaves a moment before its slot is free
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	if s.queue.free != slots() || len(s.queue.clients) != 0 {
		t.Errorf("%d of %d slots are free", s.queue.free, slots())
	}
}

// TestHugeService: a Service with any number of endpoints costs no more than
// the largest answer.
func TestHugeService(t *testing.T) {
	huge := &service.Service{Key: service.Key{Namespace: "prod", Name: "huge"}, Headless: true}
	ports := []service.EndpointPort{{Name: "http", Protocol: "TCP", Number: 80}}
	for i := range 3 * maxEndpoints {
		huge.Endpoints = append(huge.Endpoints,
			service.Endpoint{Addr: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), Ports: ports})
	}
	s := newServer(t, nil)
	s.zone.src = fixed{testTables().With(map[service.Key]*service.Service{huge.Key: huge})}
	for name, qtype := range map[string]uint16{"huge": dns.TypeA, "_http._tcp.huge": dns.TypeSRV} {
		r := ask(s, name+".prod.svc.cluster.local.", qtype)
		if len(r.Answer) != maxEndpoints {
			t.Errorf("%s: %d records", name, len(r.Answer))
		}
		shorten(r, dns.MaxMsgSize)
		if !r.Truncated {
			t.Errorf("%s: it does not say that there are more", name)
		}
	}
	for label, want := range map[string]int{"10-0-63-9": 1, "10-9-9-9": 0, "10.0.63.9": 0, "010-0-63-9": 0} {
		if got := len(ask(s, label+".huge.prod.svc.cluster.local.", dns.TypeA).Answer); got != want {
			t.Errorf("%s: %d records", label, got)
		}
	}
}
