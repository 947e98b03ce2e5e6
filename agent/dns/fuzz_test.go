package dns

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func FuzzQuery(f *testing.F) {
	for _, name := range []string{"data.prod.svc.cluster.local.", "_http._tcp.db.prod.svc.cluster.local.",
		"6.1.244.10.in-addr.arpa.", "ext.prod.svc.cluster.local.",
		"10-244-1-5.data.prod.svc.cluster.local.", "1-2-3-4.default.pod.cluster.local.", "example.com."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeANY, dns.TypeAXFR} {
			q := new(dns.Msg)
			q.SetQuestion(name, qtype)
			if qtype == dns.TypeSRV {
				q.SetEdns0(4096, true)
			}
			b, err := q.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b, qtype == dns.TypeANY)
		}
	}
	s := New(Config{Domain: "cluster.local", ResolvConf: "/nonexistent", Addrs: addrs("127.0.0.1")}, fixed{testTables()})
	f.Fuzz(func(t *testing.T, packet []byte, tcp bool) {
		q, wrong := parse(packet)
		if q != nil {
			r := s.answer(&request{ctx: t.Context(), client: addrs("10.244.1.5")[0], tcp: tcp}, q)
			if r == nil || !r.Response || r.Id != q.Id {
				t.Fatalf("%v answered %v", q, r)
			}
		} else if wrong == nil {
			return
		}
		out := s.respond(&request{ctx: t.Context(), client: addrs("10.244.1.5")[0], tcp: tcp}, packet)
		if limit := dns.MaxMsgSize; out == nil || len(out) > limit || !tcp && len(out) > maxUDP {
			t.Fatalf("%x answered with %d bytes", packet, len(out))
		}
		if err := new(dns.Msg).Unpack(out); err != nil {
			t.Fatalf("%x answered %x: %v", packet, out, err)
		}
	})
}

func FuzzReply(f *testing.F) {
	q := new(dns.Msg)
	q.SetQuestion("example.com.", dns.TypeA)
	q.Id = 7
	r := new(dns.Msg)
	r.SetReply(q)
	rr, err := dns.NewRR("example.com. 60 IN A 192.0.2.1")
	if err != nil {
		f.Fatal(err)
	}
	for range 3 {
		b, err := r.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		r.Answer = append(r.Answer, rr)
		r.SetEdns0(1232, true)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		r := reply(q, packet)
		if r == nil {
			return
		}
		if r.Id != q.Id || len(r.Question) != 1 || r.Question[0].Qtype != q.Question[0].Qtype {
			t.Fatalf("%v taken for the reply to %v", r, q)
		}
		shorten(r, dns.MinMsgSize)
	})
}

// FuzzQuick: what is read without the library is what the library reads, and what is
// answered from the cache is an answer to it.
func FuzzQuick(f *testing.F) {
	for i, name := range []string{"www.example.com.", "data.prod.svc.cluster.local.", "WWW.Example.COM.", "."} {
		q := new(dns.Msg)
		q.SetQuestion(name, dns.TypeA)
		q.CheckingDisabled = i == 2
		for range 2 {
			b, err := q.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
			q.SetEdns0(uint16(600*i), i%2 == 0)
			q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}
		}
	}
	s := New(Config{Domain: "cluster.local", ResolvConf: "/nonexistent", Addrs: addrs("127.0.0.1")}, fixed{testTables()})
	f.Fuzz(func(t *testing.T, packet []byte) {
		var a asked
		if !a.read(packet) {
			return
		}
		q, _ := parse(packet)
		if q == nil {
			return // options are passed over here
		}
		k := keyOf(q)
		if string(k) != string(a.key()) || a.limit != udpLimit(q) {
			t.Fatalf("%x: %x and %x, %d and %d", packet, k, a.key(), a.limit, udpLimit(q))
		}
		r := new(dns.Msg)
		r.SetReply(q)
		r.Answer = addresses(q.Question[0].Name, addrs("192.0.2.1", "192.0.2.2"), dns.TypeA)
		e := pack(k, r)
		if e == nil {
			t.Fatalf("%v is not kept", r)
		}
		got := new(dns.Msg)
		out := e.appendTo(nil, packet, len(k.name()), e.since)
		if err := got.Unpack(out); err != nil || got.Id != q.Id || got.RecursionDesired != q.RecursionDesired ||
			len(got.Answer) != 2 || got.Question[0] != q.Question[0] {
			t.Fatalf("%v answered %v, %v", q, got, err)
		}
		first := s.respond(&request{ctx: t.Context(), client: addrs("10.244.1.5")[0]}, packet)
		again := s.quick(&request{ctx: t.Context()}, packet, nil, e.since)
		if first == nil || again == nil {
			return
		}
		one, other := new(dns.Msg), new(dns.Msg)
		if one.Unpack(first) != nil || other.Unpack(again) != nil || !strings.EqualFold(one.String(), other.String()) {
			t.Fatalf("%x, then %x", first, again)
		}
	})
}

func FuzzHosts(f *testing.F) {
	f.Add([]byte(hostsText))
	f.Fuzz(func(t *testing.T, data []byte) {
		table := readHosts(data)
		for name, list := range table.addrs {
			q := new(dns.Msg)
			q.SetQuestion(name, dns.TypeANY)
			if _, err := q.Pack(); err != nil || len(list) == 0 {
				t.Fatalf("%q: %v, %v", name, list, err)
			}
		}
		if len(table.addrs) > maxHostsNames {
			t.Fatal("more names than the limit")
		}
	})
}

func FuzzUpstreams(f *testing.F) {
	f.Add(`{"acme.local": ["192.0.2.1:5353"]}`, `["192.0.2.1", "::1"]`)
	f.Fuzz(func(t *testing.T, stubs, servers string) {
		u, err := readUpstreams(map[string]string{stubsKey: stubs, serversKey: servers}, "cluster.local.")
		if err != nil {
			return
		}
		s := newForwarder("/nonexistent", nil, NewCounts("cluster.local"))
		s.set(u)
		if len(s.stubs) != len(u.Stubs) || len(s.fixed) != len(u.Servers) {
			t.Fatalf("%v gives %v and %v", u, s.stubs, s.fixed)
		}
	})
}
