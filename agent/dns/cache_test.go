package dns

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/shoal-project/shoal/agent/service"
)

// pass lets time go by for what is stored.
func pass(s *Server, d time.Duration) {
	for _, c := range []*answerCache{s.up.positive, s.up.negative} {
		for i := range c.shards {
			for _, e := range c.shards[i].by {
				e.since, e.expires = e.since.Add(-d), e.expires.Add(-d)
			}
		}
	}
}

// over asks as clients do, from packet to packet.
func over(t *testing.T, s *Server, name string, qtype uint16, change ...func(*dns.Msg)) *dns.Msg {
	t.Helper()
	q := new(dns.Msg)
	q.SetQuestion(name, qtype)
	for _, f := range change {
		f(q)
	}
	packet, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	r := new(dns.Msg)
	out := s.respond(&request{ctx: context.Background(), client: addrs("10.244.0.5")[0]}, packet)
	if err := r.Unpack(out); err != nil {
		t.Fatalf("%s: %x: %v", name, out, err)
	}
	if r.Id != q.Id || !r.Response || r.RecursionDesired != q.RecursionDesired || r.Question[0] != q.Question[0] ||
		(r.IsEdns0() == nil) != (q.IsEdns0() == nil) {
		t.Fatalf("%v answers %v", r, q)
	}
	return r
}

// TestStoredAnswers: an answer from the cache is the one that the server gave, with the
// spelling, the bits and the EDNS of who asks, and what is left of its time.
func TestStoredAnswers(t *testing.T) {
	var asked atomic.Int32
	s := newServer(t, func(w dns.ResponseWriter, q *dns.Msg) { asked.Add(1); elsewhere(w, q) })
	first := over(t, s, "www.Example.com.", dns.TypeA)
	pass(s, 10*time.Second)
	r := over(t, s, "WWW.eXample.com.", dns.TypeA, func(q *dns.Msg) { q.RecursionDesired = false })
	if show(first) != "NOERROR www.example.com. A 198.51.100.9" || show(r) != "NOERROR WWW.eXample.com. A 198.51.100.9" {
		t.Errorf("%s, then %s", show(first), show(r))
	}
	if left := r.Answer[0].Header().Ttl; left != 290 {
		t.Errorf("%d s are left of 300", left)
	}
	edns := func(q *dns.Msg) {
		q.SetEdns0(4096, true)
		q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}
	}
	for range 2 {
		r = over(t, s, "www.example.com.", dns.TypeA, edns)
		if opt := r.IsEdns0(); !opt.Do() || len(opt.Option) != 0 || len(r.Answer) != 1 {
			t.Errorf("with EDNS: %v", r)
		}
	}
	if n := asked.Load(); n != 2 { // one with EDNS, one without
		t.Errorf("%d questions", n)
	}
	for range 2 { // from the zone, and stored
		r := over(t, s, "DATA.prod.svc.cluster.local.", dns.TypeA, edns)
		if len(r.Answer) != 1 || r.Answer[0].Header().Ttl != ttl {
			t.Errorf("Service: %v", r)
		}
	}
	if s.answers.len() != 1 {
		t.Errorf("%d answers of the zone are stored", s.answers.len())
	}
}

// TestZoneAnswersEndWithTheirTables: no stored answer outlives a change of Services.
func TestZoneAnswersEndWithTheirTables(t *testing.T) {
	s := newServer(t, nil)
	tables := testTables()
	for range 2 {
		over(t, s, "data.prod.svc.cluster.local.", dns.TypeA)
		over(t, s, "gone.prod.svc.cluster.local.", dns.TypeA)
	}
	moved := *tables.Get(service.Key{Namespace: "prod", Name: "data"})
	moved.ClusterIPs = addrs("10.96.0.77")
	s.zone.src = fixed{tables.With(map[service.Key]*service.Service{moved.Key: &moved})}
	if got := show(over(t, s, "data.prod.svc.cluster.local.", dns.TypeA)); got !=
		"NOERROR data.prod.svc.cluster.local. A 10.96.0.77" {
		t.Error(got)
	}
	gone := moved
	gone.Name = "gone"
	s.zone.src = fixed{tables.With(map[service.Key]*service.Service{gone.Key: &gone})}
	if got := show(over(t, s, "gone.prod.svc.cluster.local.", dns.TypeA)); got !=
		"NOERROR gone.prod.svc.cluster.local. A 10.96.0.77" {
		t.Error(got)
	}
}

// TestSmallClients: a stored answer that is larger than a client without EDNS takes is cut.
func TestSmallClients(t *testing.T) {
	s := newServer(t, func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg)
		r.SetReply(q)
		for i := range 40 {
			h := header(q.Question[0].Name, dns.TypeA)
			r.Answer = append(r.Answer, &dns.A{Hdr: h, A: net.IPv4(192, 0, 2, byte(i))})
		}
		r.Compress = true
		_ = w.WriteMsg(r)
	})
	for range 2 {
		r := over(t, s, "many.example.com.", dns.TypeA)
		if r.Compress = true; !r.Truncated || r.Len() > dns.MinMsgSize {
			t.Errorf("%d records, %d bytes, truncated: %v", len(r.Answer), r.Len(), r.Truncated)
		}
		r = over(t, s, "many.example.com.", dns.TypeA, func(q *dns.Msg) { q.SetEdns0(1232, false) })
		if r.Truncated || len(r.Answer) != 40 {
			t.Errorf("with EDNS: %d records", len(r.Answer))
		}
	}
}

// TestLives are RFC 2308's: a negative answer holds for the SOA's minimum, and its own
// time to live at most.
func TestLives(t *testing.T) {
	a := func(ttl uint32) dns.RR {
		h := dns.RR_Header{Name: "a.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl}
		return &dns.A{Hdr: h, A: net.IPv4(192, 0, 2, 1)}
	}
	cname := &dns.CNAME{Hdr: dns.RR_Header{Name: "b.", Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: 20}, Target: "a."}
	for _, x := range []struct {
		what     string
		rcode    int
		answer   []dns.RR
		ns       []dns.RR
		life     time.Duration
		negative bool
	}{
		{"address", dns.RcodeSuccess, []dns.RR{a(12)}, nil, 12 * time.Second, false},
		{"longest", dns.RcodeSuccess, []dns.RR{a(86400)}, nil, cacheTTL, false},
		{"not to be kept", dns.RcodeSuccess, []dns.RR{a(0)}, nil, 0, false},
		{"no name", dns.RcodeNameError, nil, []dns.RR{soaOf("com.", 7)}, 7 * time.Second, true},
		{"no data", dns.RcodeSuccess, nil, []dns.RR{soaOf("com.", 9)}, 9 * time.Second, true},
		{"no data behind an alias", dns.RcodeSuccess,
			[]dns.RR{cname}, []dns.RR{soaOf("com.", 86400)}, 20 * time.Second, true},
		{"alias", dns.RcodeSuccess, []dns.RR{cname, a(60)}, nil, 20 * time.Second, false},
		{"without a SOA", dns.RcodeNameError, nil, nil, noSOATTL, true},
		{"failure", dns.RcodeServerFailure, nil, nil, 0, false},
	} {
		r := &dns.Msg{Answer: x.answer, Ns: x.ns}
		r.Rcode = x.rcode
		if life, negative := lifeOf(r, dns.TypeA); life != x.life || negative != x.negative {
			t.Errorf("%s: %v, negative: %v", x.what, life, negative)
		}
	}
	if life, _ := lifeOf(&dns.Msg{MsgHdr: dns.MsgHdr{Truncated: true}, Answer: []dns.RR{a(60)}}, dns.TypeA); life != 0 {
		t.Error("half an answer is kept")
	}
}

// TestServesStale: while no server answers, old answers do, for an hour, and not at the
// price of a wait each time (RFC 8767).
func TestServesStale(t *testing.T) {
	var asked, down atomic.Int32
	s := newServer(t, func(w dns.ResponseWriter, q *dns.Msg) {
		asked.Add(1)
		if down.Load() == 1 {
			r := new(dns.Msg)
			r.SetRcode(q, dns.RcodeServerFailure)
			_ = w.WriteMsg(r)
			return
		}
		elsewhere(w, q)
	})
	const want = "NOERROR www.example.com. A 198.51.100.9"
	over(t, s, "www.example.com.", dns.TypeA)
	over(t, s, "www.example.com.", dns.TypeAAAA)
	pass(s, cacheTTL+time.Second)
	down.Store(1)
	for range 3 {
		r := over(t, s, "www.example.com.", dns.TypeA)
		if show(r) != want || r.Answer[0].Header().Ttl != staleTTL {
			t.Errorf("got %v", r)
		}
	}
	if n := asked.Load(); n != 3 {
		t.Errorf("the server that is down was asked %d times", n-2)
	}
	if r := over(t, s, "www.example.com.", dns.TypeAAAA); show(r) != "NOERROR" || len(r.Ns) != 1 {
		t.Errorf("what was not there: %v", r)
	}
	if n := s.counts.stale.Load(); n != 4 {
		t.Errorf("%d stale answers are counted", n)
	}
	pass(s, staleRecheck+time.Second)
	down.Store(0)
	if r := over(t, s, "www.example.com.", dns.TypeA); show(r) != want || r.Answer[0].Header().Ttl != 300 {
		t.Errorf("the server is there again: %v", r)
	}
	down.Store(1)
	pass(s, cacheTTL+maxStale)
	if r := over(t, s, "www.example.com.", dns.TypeA); r.Rcode != dns.RcodeServerFailure {
		t.Errorf("too old: %v", r)
	}
}

// TestSilenceCostsStaleClientsLittle: nobody waits longer for a silent server than RFC 8767 says.
func TestSilenceCostsStaleClientsLittle(t *testing.T) {
	s := newServer(t, elsewhere)
	over(t, s, "www.example.com.", dns.TypeA)
	pass(s, cacheTTL+time.Second)
	s.up.servers = []string{silentUpstream(t), silentUpstream(t), silentUpstream(t)}
	began := time.Now()
	if r := over(t, s, "www.example.com.", dns.TypeA); r.Rcode != dns.RcodeSuccess || time.Since(began) > 3*time.Second {
		t.Errorf("%s after %v", show(r), time.Since(began))
	}
}

// TestPrefetch: a name in use is asked for again before its time is over, once, and one
// that nobody uses is not.
func TestPrefetch(t *testing.T) {
	var asked atomic.Int32
	s := newServer(t, func(w dns.ResponseWriter, q *dns.Msg) { asked.Add(1); elsewhere(w, q) })
	over(t, s, "rare.example.com.", dns.TypeA)
	for range prefetchHits {
		over(t, s, "www.example.com.", dns.TypeA)
	}
	pass(s, cacheTTL-time.Second)
	over(t, s, "rare.example.com.", dns.TypeA)
	for range 5 {
		over(t, s, "www.example.com.", dns.TypeA)
	}
	s.up.running.Wait()
	if n := asked.Load(); n != 3 {
		t.Errorf("%d questions for two names and one that is in use", n)
	}
	pass(s, 2*time.Second)
	if over(t, s, "www.example.com.", dns.TypeA); asked.Load() != 3 {
		t.Error("the new answer is not used")
	}
	if over(t, s, "rare.example.com.", dns.TypeA); asked.Load() != 4 {
		t.Error("what nobody uses was asked for in advance")
	}
}

// TestPrefetchIsBounded: without a place nothing is asked, and the next use tries again.
func TestPrefetchIsBounded(t *testing.T) {
	var asked atomic.Int32
	s := newServer(t, func(w dns.ResponseWriter, q *dns.Msg) { asked.Add(1); elsewhere(w, q) })
	for range prefetchHits {
		over(t, s, "www.example.com.", dns.TypeA)
	}
	pass(s, cacheTTL-time.Second)
	for range maxPrefetches {
		s.up.prefetches <- struct{}{}
	}
	over(t, s, "www.example.com.", dns.TypeA)
	s.up.running.Wait()
	if asked.Load() != 1 {
		t.Error("asked beyond the places")
	}
	<-s.up.prefetches
	over(t, s, "www.example.com.", dns.TypeA)
	s.up.running.Wait()
	if asked.Load() != 2 {
		t.Error("not tried again")
	}
}

// TestMadeUpNamesPushOutNoOthers: positive answers have room of their own.
func TestMadeUpNamesPushOutNoOthers(t *testing.T) {
	s := newServer(t, elsewhere)
	over(t, s, "www.example.com.", dns.TypeA)
	q := new(dns.Msg)
	for i := range 2 * negativeMax {
		q.SetQuestion("n"+time.Duration(i).String()+".example.com.", dns.TypeA)
		r := new(dns.Msg)
		r.SetRcode(q, dns.RcodeNameError)
		s.up.store(keyOf(q), r, time.Now())
	}
	if n := s.up.negative.len(); n > negativeMax {
		t.Errorf("%d negative answers", n)
	}
	if s.up.positive.len() != 1 || s.up.negative.evicted.Load() == 0 {
		t.Error("the one that is used is gone")
	}
}

// TestStubDomains: the longest domain's servers are asked, and no others for it.
func TestStubDomains(t *testing.T) {
	answering := func(ip string) string {
		_, addr, _ := strings.Cut(upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
			r := new(dns.Msg)
			r.SetReply(q)
			r.Answer = []dns.RR{&dns.A{Hdr: header(q.Question[0].Name, dns.TypeA), A: net.ParseIP(ip)}}
			_ = w.WriteMsg(r)
		}), "\x00")
		return addr
	}
	s := newServer(t, nil)
	s.up.own = nil
	s.up.set(Upstreams{Servers: []string{answering("192.0.2.1")}, Stubs: map[string][]string{
		"acme.local": {answering("192.0.2.2")}, "Deep.acme.local.": {answering("192.0.2.3")},
		"down.test": {silentUpstream(t)},
	}})
	for name, want := range map[string]string{
		"www.example.com.": "192.0.2.1", "x.acme.local.": "192.0.2.2", "acme.local.": "192.0.2.2",
		"X.DEEP.acme.local.": "192.0.2.3", "xacme.local.": "192.0.2.1",
	} {
		if got := show(ask(s, name, dns.TypeA)); got != "NOERROR "+strings.ToLower(name)+" A "+want {
			t.Error(got)
		}
	}
	if r := ask(s, "a.down.test.", dns.TypeA); r.Rcode != dns.RcodeServerFailure {
		t.Errorf("a stub domain without an answer: %v", r)
	}
	s.up.own = addrs("127.0.0.1")
	s.up.set(Upstreams{Servers: []string{"127.0.0.1", "[::1]:53", "10.0.0.1"}})
	if got := s.up.fixed; len(got) != 2 || got[1] != "10.0.0.1:53" {
		t.Errorf("asks %v", got) // 127.0.0.1 is this server
	}
}

// TestVersions: EDNS of a later version is refused by its own code (RFC 6891).
func TestVersions(t *testing.T) {
	s := newServer(t, nil)
	q := new(dns.Msg)
	q.SetQuestion("data.prod.svc.cluster.local.", dns.TypeA)
	q.SetEdns0(1232, false)
	q.IsEdns0().SetVersion(1)
	packet, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	r := new(dns.Msg)
	if err := r.Unpack(s.respond(&request{ctx: t.Context(), client: addrs("127.0.0.1")[0]}, packet)); err != nil ||
		r.Rcode != dns.RcodeBadVers {
		t.Errorf("%v, %v", r, err)
	}
}
