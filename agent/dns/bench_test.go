package dns

import (
	"net"
	"testing"

	"github.com/miekg/dns"
)

// elsewhere answers each A and AAAA query outside search domains with an address.
func elsewhere(w dns.ResponseWriter, q *dns.Msg) {
	r := new(dns.Msg)
	r.SetReply(q)
	name := q.Question[0].Name
	switch {
	case q.Question[0].Qtype == dns.TypeA:
		r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300},
			A: net.IPv4(198, 51, 100, 9)}}
	default:
		r.Ns = []dns.RR{soaOf("example.com.", 300)}
	}
	_ = w.WriteMsg(r)
}

func soaOf(zone string, minimum uint32) dns.RR {
	return &dns.SOA{Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 3600},
		Ns: "ns." + zone, Mbox: "h." + zone, Serial: 1, Refresh: 1, Retry: 1, Expire: 1, Minttl: minimum}
}

// BenchmarkRespond is what a query costs without the network.
func BenchmarkRespond(b *testing.B) {
	s := newServer(b, elsewhere)
	for _, x := range []struct {
		name, question string
		edns           bool
	}{
		{"service", "data.prod.svc.cluster.local.", false},
		{"service-edns", "data.prod.svc.cluster.local.", true},
		{"headless", "db.prod.svc.cluster.local.", false},
		{"elsewhere", "www.example.com.", false},
		{"missing", "www.example.com.prod.svc.cluster.local.", false},
	} {
		b.Run(x.name, func(b *testing.B) {
			q := new(dns.Msg)
			q.SetQuestion(x.question, dns.TypeA)
			if x.edns {
				q.SetEdns0(1232, false)
			}
			packet, err := q.Pack()
			if err != nil {
				b.Fatal(err)
			}
			req := &request{ctx: b.Context(), client: addrs("10.244.0.5")[0]}
			b.ReportAllocs()
			for b.Loop() {
				if len(s.respond(req, packet)) < headerSize {
					b.Fatal("no answer")
				}
			}
		})
	}
}

// BenchmarkCompletion is what the first question of a pod's search costs, all else stored.
func BenchmarkCompletion(b *testing.B) {
	i := &internet{names: map[string]string{"www.example.com.": "198.51.100.9"}}
	s := completing(b, i, CompleteLong, "corp.example")
	q := new(dns.Msg)
	q.SetQuestion("www.example.com"+missing, dns.TypeA)
	packet, err := q.Pack()
	if err != nil {
		b.Fatal(err)
	}
	req := &request{ctx: b.Context(), client: addrs("10.244.0.5")[0]}
	b.ReportAllocs()
	for b.Loop() {
		if out := s.respond(req, packet); len(out) < headerSize || out[3]&0xF != dns.RcodeSuccess {
			b.Fatal("no answer")
		}
	}
}
