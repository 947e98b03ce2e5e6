package dns

import (
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/shoal-project/shoal/agent/service"
)

// ttl of every record, in seconds: changes must be seen soon.
const ttl = 5

// zone answers names under the cluster domain.
type zone struct {
	src    Source
	domain string // fully qualified, lower case

	mu    sync.Mutex
	index index
}

// index holds what is rarely asked for; it follows the tables when it is.
type index struct {
	tables     *service.Tables // those it was made from
	namespaces map[string]int  // Services in each
	names      map[netip.Addr][]string
}

// record is one endpoint or address with its name.
type record struct {
	name  string
	addrs []netip.Addr
	ports []service.EndpointPort
}

// answer answers a query for a name in the zone.
func (z *zone) answer(q *dns.Msg, name string) *dns.Msg {
	r := new(dns.Msg)
	r.SetReply(q)
	r.Authoritative, r.RecursionAvailable = true, true
	tables := z.src.Tables()
	if tables == nil {
		r.Rcode = dns.RcodeServerFailure
		return r
	}
	rel := strings.TrimSuffix(strings.TrimSuffix(name, z.domain), ".")
	var labels []string
	if rel != "" {
		labels = strings.Split(rel, ".")
	}
	if !z.lookup(r, tables, labels, q.Question[0].Qtype) {
		r.Rcode = dns.RcodeNameError
	}
	if len(r.Answer) == 0 {
		r.Ns = []dns.RR{z.soa()}
	}
	return r
}

// lookup adds the answer and tells whether the name exists.
func (z *zone) lookup(r *dns.Msg, t *service.Tables, labels []string, qtype uint16) bool {
	n := len(labels)
	if n == 0 {
		return z.apex(r, qtype)
	}
	switch labels[n-1] {
	case "dns-version":
		if n == 1 && qtype == dns.TypeTXT {
			r.Answer = append(r.Answer, &dns.TXT{Hdr: header(r.Question[0].Name, dns.TypeTXT), Txt: []string{"1.1.0"}})
		}
		return n == 1
	case "svc":
		switch n {
		case 1:
			return true
		case 2:
			return z.hasNamespace(t, labels[0])
		}
		return z.service(r, t.Get(service.Key{Namespace: labels[n-2], Name: labels[n-3]}), labels[:n-3], qtype)
	case "pod":
		if n != 3 {
			return n < 3
		}
		return z.pod(r, labels[0], qtype)
	}
	return false
}

func (z *zone) apex(r *dns.Msg, qtype uint16) bool {
	switch qtype {
	case dns.TypeSOA:
		r.Answer = []dns.RR{z.soa()}
	case dns.TypeNS:
		r.Answer = []dns.RR{&dns.NS{Hdr: header(z.domain, dns.TypeNS), Ns: "ns.dns." + z.domain}}
	}
	return true
}

func (z *zone) soa() dns.RR {
	return &dns.SOA{
		Hdr: header(z.domain, dns.TypeSOA), Ns: "ns.dns." + z.domain, Mbox: "hostmaster." + z.domain,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl,
	}
}

// pod answers a-b-c-d.namespace.pod (DNS-8).
func (z *zone) pod(r *dns.Msg, dashed string, qtype uint16) bool {
	a, err := netip.ParseAddr(strings.ReplaceAll(dashed, "-", "."))
	if err != nil {
		a, err = netip.ParseAddr(strings.ReplaceAll(dashed, "-", ":"))
	}
	if err != nil {
		return false
	}
	r.Answer = append(r.Answer, addresses(r.Question[0].Name, []netip.Addr{a}, qtype)...)
	return true
}

// service answers the names of one Service; below holds the labels before its name.
func (z *zone) service(r *dns.Msg, s *service.Service, below []string, qtype uint16) bool {
	if s == nil {
		return false
	}
	qname := r.Question[0].Name
	if s.ExternalName != "" {
		if len(below) > 0 {
			return false
		}
		r.Answer = []dns.RR{&dns.CNAME{Hdr: header(qname, dns.TypeCNAME), Target: dns.Fqdn(s.ExternalName)}}
		return true
	}
	switch {
	case len(below) == 0:
		return z.serviceName(r, s, qtype)
	case len(below) == 1 && strings.HasPrefix(below[0], "_"):
		return false
	case len(below) == 1:
		return z.endpointName(r, s, below[0], qtype)
	case len(below) == 2 && strings.HasPrefix(below[0], "_") && strings.HasPrefix(below[1], "_"):
		return z.portName(r, s, below[0][1:], below[1][1:], qtype)
	}
	return false
}

func (z *zone) serviceName(r *dns.Msg, s *service.Service, qtype uint16) bool {
	qname := r.Question[0].Name
	if !s.Headless {
		if qtype == dns.TypeSRV {
			z.srv(r, z.records(s), func(service.EndpointPort) bool { return true })
			return true
		}
		r.Answer = addresses(qname, s.ClusterIPs, qtype)
		return true
	}
	if len(s.Endpoints) == 0 {
		return false
	}
	if qtype == dns.TypeSRV {
		z.srv(r, z.records(s), func(service.EndpointPort) bool { return true })
		return true
	}
	some := someEndpoints(s)
	addrs := make([]netip.Addr, 0, len(some))
	for i := range some {
		addrs = append(addrs, some[i].Addr)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	r.Answer = addresses(qname, slices.Compact(addrs), qtype)
	rand.Shuffle(len(r.Answer), func(i, j int) { r.Answer[i], r.Answer[j] = r.Answer[j], r.Answer[i] })
	return true
}

// maxEndpoints of a Service go into one answer, more than fit into the largest:
// a Service can have any number, and each is work.
const maxEndpoints = dns.MaxMsgSize / minRecord

// someEndpoints are a Service's endpoints; of too many, others each time.
func someEndpoints(s *service.Service) []service.Endpoint {
	if n := len(s.Endpoints); n > maxEndpoints {
		from := rand.IntN(n - maxEndpoints + 1)
		return s.Endpoints[from : from+maxEndpoints]
	}
	return s.Endpoints
}

// endpointName answers hostname.service and a-b-c-d.service (DNS-9, DNS-12).
func (z *zone) endpointName(r *dns.Msg, s *service.Service, label string, qtype uint16) bool {
	var addrs []netip.Addr
	named := undashed(label)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if (e.Hostname == label || named.IsValid() && e.Addr == named) && len(addrs) < maxEndpoints {
			addrs = append(addrs, e.Addr)
		}
	}
	r.Answer = addresses(r.Question[0].Name, addrs, qtype)
	return len(addrs) > 0
}

// portName answers _port._protocol.service (DNS-6, DNS-7).
func (z *zone) portName(r *dns.Msg, s *service.Service, port, protocol string, qtype uint16) bool {
	match := func(p service.EndpointPort) bool {
		return p.Name == port && strings.EqualFold(p.Protocol, protocol)
	}
	exists := slices.ContainsFunc(s.Endpoints, func(e service.Endpoint) bool { return slices.ContainsFunc(e.Ports, match) })
	if !s.Headless {
		exists = slices.ContainsFunc(z.records(s)[0].ports, match)
	}
	if exists && qtype == dns.TypeSRV {
		z.srv(r, z.records(s), match)
	}
	return exists
}

// records are a Service's SRV targets: itself, or each endpoint when headless.
func (z *zone) records(s *service.Service) []record {
	base := s.Name + "." + s.Namespace + ".svc." + z.domain
	if !s.Headless {
		rec := record{name: base, addrs: s.ClusterIPs}
		for _, p := range s.Ports {
			rec.ports = append(rec.ports, service.EndpointPort{Name: p.Name, Protocol: p.Protocol, Number: p.Number})
		}
		return []record{rec}
	}
	var recs []record
	some := someEndpoints(s)
	for i := range some {
		e := &some[i]
		recs = append(recs, record{name: endpointLabel(e) + "." + base, addrs: []netip.Addr{e.Addr}, ports: e.Ports})
	}
	return recs
}

func (z *zone) srv(r *dns.Msg, recs []record, match func(service.EndpointPort) bool) {
	for _, rec := range recs {
		used := false
		for _, p := range rec.ports {
			if !match(p) {
				continue
			}
			used = true
			r.Answer = append(r.Answer, &dns.SRV{
				Hdr: header(r.Question[0].Name, dns.TypeSRV), Weight: uint16(max(1, 100/len(recs))),
				Port: p.Number, Target: rec.name,
			})
		}
		if used {
			r.Extra = append(r.Extra, addresses(rec.name, rec.addrs, dns.TypeA)...)
			r.Extra = append(r.Extra, addresses(rec.name, rec.addrs, dns.TypeAAAA)...)
		}
	}
}

func endpointLabel(e *service.Endpoint) string {
	if e.Hostname != "" {
		return e.Hostname
	}
	return dashed(e.Addr)
}

var dashes = strings.NewReplacer(".", "-", ":", "-")

func dashed(a netip.Addr) string { return dashes.Replace(a.String()) }

// undashed is the address that dashed gives this label for, the zero one for
// none.
func undashed(label string) netip.Addr {
	for _, mark := range []string{".", ":"} {
		if a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", mark)); err == nil && dashed(a) == label {
			return a
		}
	}
	return netip.Addr{}
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

// addresses are the A or AAAA records among addrs; none for other types.
func addresses(name string, addrs []netip.Addr, qtype uint16) []dns.RR {
	var rrs []dns.RR
	for _, a := range addrs {
		switch {
		case a.Is4() && (qtype == dns.TypeA || qtype == dns.TypeANY):
			rrs = append(rrs, &dns.A{Hdr: header(name, dns.TypeA), A: a.AsSlice()})
		case a.Is6() && (qtype == dns.TypeAAAA || qtype == dns.TypeANY):
			rrs = append(rrs, &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: a.AsSlice()})
		}
	}
	return rrs
}

// reverse answers a PTR query for a Service's or endpoint's address, nil for
// any other.
func (z *zone) reverse(q *dns.Msg, name string) *dns.Msg {
	t := z.src.Tables()
	a, ok := reverseAddr(name)
	if !ok || t == nil {
		return nil
	}
	names := z.namesOf(t, a)
	if len(names) == 0 {
		return nil
	}
	r := new(dns.Msg)
	r.SetReply(q)
	r.Authoritative, r.RecursionAvailable = true, true
	if q.Question[0].Qtype == dns.TypePTR {
		for _, n := range names {
			r.Answer = append(r.Answer, &dns.PTR{Hdr: header(q.Question[0].Name, dns.TypePTR), Ptr: n + z.domain})
		}
	}
	return r
}

// reverseAddr reads d.c.b.a.in-addr.arpa and the nibbles of ip6.arpa.
func reverseAddr(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		parts := strings.Split(rest, ".")
		slices.Reverse(parts)
		a, err := netip.ParseAddr(strings.Join(parts, "."))
		return a, err == nil && a.Is4()
	}
	rest, ok := strings.CutSuffix(name, ".ip6.arpa.")
	if !ok || len(rest) != 63 {
		return netip.Addr{}, false
	}
	nibbles := strings.Split(rest, ".")
	slices.Reverse(nibbles)
	var b strings.Builder
	for i, n := range nibbles {
		if i > 0 && i%4 == 0 {
			b.WriteByte(':')
		}
		b.WriteString(n)
	}
	a, err := netip.ParseAddr(b.String())
	return a, err == nil
}

func (z *zone) hasNamespace(t *service.Tables, name string) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.index.follow(t)
	return z.index.namespaces[name] > 0
}

// namesOf returns the names of an address, without the cluster domain.
func (z *zone) namesOf(t *service.Tables, a netip.Addr) []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.index.follow(t)
	return slices.Sorted(slices.Values(z.index.names[a]))
}

// follow brings the index up to date with the Services that changed.
func (ix *index) follow(t *service.Tables) {
	if ix.tables == t {
		return
	}
	if ix.names == nil {
		ix.namespaces, ix.names = map[string]int{}, map[netip.Addr][]string{}
	}
	for _, k := range service.Changed(ix.tables, t) {
		if old := ix.tables.Get(k); old != nil {
			ix.count(k.Namespace, -1)
			for n, a := range namesIn(old) {
				ix.remove(a, n)
			}
		}
		if now := t.Get(k); now != nil {
			ix.count(k.Namespace, 1)
			for n, a := range namesIn(now) {
				ix.names[a] = append(ix.names[a], n)
			}
		}
	}
	ix.tables = t
}

func (ix *index) count(namespace string, by int) {
	if ix.namespaces[namespace] += by; ix.namespaces[namespace] == 0 {
		delete(ix.namespaces, namespace)
	}
}

func (ix *index) remove(a netip.Addr, name string) {
	rest := slices.DeleteFunc(ix.names[a], func(n string) bool { return n == name })
	if ix.names[a] = rest; len(rest) == 0 {
		delete(ix.names, a)
	}
}

// namesIn goes through the names that lead to one address of a Service, each
// pair once.
func namesIn(s *service.Service) iter.Seq2[string, netip.Addr] {
	return func(yield func(string, netip.Addr) bool) {
		type pair struct {
			name string
			addr netip.Addr
		}
		seen := map[pair]bool{}
		base := s.Name + "." + s.Namespace + ".svc."
		for _, a := range s.ClusterIPs {
			if !yield(base, a) {
				return
			}
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if !s.Headless && e.Hostname == "" {
				continue
			}
			p := pair{endpointLabel(e) + "." + base, e.Addr}
			if seen[p] {
				continue
			}
			seen[p] = true
			if !yield(p.name, p.addr) {
				return
			}
		}
	}
}
