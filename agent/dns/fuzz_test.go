package dns

import (
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
