package dns

import (
	"context"
	"hash/maphash"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Completion is for which names the server looks through a client's search domains at
// the first question (as CoreDNS's plugin autopath does), so that the client need not.
type Completion int

// Modes of completion.
const (
	CompleteNone Completion = iota
	// CompleteLong is for names of three labels and more. Beneath the domain of a
	// namespace no name of the cluster has so many, so nobody means one that is missing.
	CompleteLong
	// CompleteAll is for names of two labels too. Who asks for a pod of a Service by its
	// whole name, and the Service is not there, gets what the Internet has under the
	// pod's and the Service's name.
	CompleteAll
)

// labels is the least number of labels of a name, 0 for none.
func (c Completion) labels() int {
	switch c {
	case CompleteLong:
		return 3
	case CompleteAll:
		return 2
	}
	return 0
}

const (
	// completionWait is how long all domains together may take. A client waits for 5 s,
	// some ask again after half of it; what took too long it does itself.
	completionWait = 1500 * time.Millisecond
	// searchAge is how old a client's search domains may get.
	searchAge  = 2 * time.Second
	maxClients = 4096
)

// completer knows the search domains of clients.
type completer struct {
	mode   Completion
	search func(netip.Addr) []string
	zone   string // beneath which the domains of namespaces are
	seed   maphash.Seed

	mu      sync.Mutex
	clients map[netip.Addr]searched
}

type searched struct {
	domains []string // fully qualified, lower case
	mark    uint64   // of these domains
	read    time.Time
}

func newCompleter(cfg Config) completer {
	return completer{
		mode:   cfg.Completion,
		search: cfg.Search,
		zone:   "svc." + dns.CanonicalName(cfg.Domain),
		seed:   maphash.MakeSeed(),
	}
}

// mark tells the search domains of a client from others', if they are known and there
// are any.
func (c *completer) mark(client netip.Addr, now time.Time) (mark uint64, ok bool) {
	if c.mode == CompleteNone {
		return 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.clients[client]
	return s.mark, len(s.domains) > 0 && now.Sub(s.read) < searchAge
}

// takes tells whether a query may be one by which a resolver begins its search. One that
// wants signatures, or none checked, is left as it is.
func (c *completer) takes(q *dns.Msg) bool {
	if c.search == nil || c.mode == CompleteNone || q.CheckingDisabled {
		return false
	}
	if opt := q.IsEdns0(); opt != nil && opt.Do() {
		return false
	}
	asked := q.Question[0]
	if asked.Qtype != dns.TypeA && asked.Qtype != dns.TypeAAAA {
		return false
	}
	const namespace = 1
	name := strings.ToLower(asked.Name)
	return dns.IsSubDomain(c.zone, name) &&
		dns.CountLabel(name) >= c.mode.labels()+namespace+dns.CountLabel(c.zone)
}

// domains are those that a client's resolver looks through, the first one first.
func (c *completer) domains(client netip.Addr, now time.Time) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.clients[client]; ok && now.Sub(s.read) < searchAge {
		return s.domains
	}
	if c.clients == nil || len(c.clients) >= maxClients {
		c.clients = map[netip.Addr]searched{}
	}
	s := searched{read: now}
	for _, d := range c.search(client) {
		s.domains = append(s.domains, dns.CanonicalName(d))
	}
	s.mark = maphash.String(c.seed, strings.Join(s.domains, " "))
	c.clients[client] = s
	return s.domains
}

// complete looks for what a client searches that begins with a name which does not exist:
// in its other search domains, and at last for the name as it is, and answers with an
// alias to the first that exists. That is where the client would end by itself: musl's
// resolver stops at the first name that exists, with or without records of the type that
// it wants; glibc's looks on after one without, by itself. nil leaves the answer as it is,
// and the search to the client.
func (s *Server) complete(req *request, q *dns.Msg, name string) *dns.Msg {
	domains := s.completer.domains(req.client, time.Now())
	if len(domains) == 0 {
		return nil
	}
	host, ok := strings.CutSuffix(name, "."+domains[0])
	if !ok || dns.CountLabel(host) < s.completer.mode.labels() {
		return nil
	}
	waits := *req
	var cancel context.CancelFunc
	waits.ctx, cancel = context.WithTimeout(req.ctx, completionWait)
	defer cancel()
	for _, domain := range append(slices.Clip(domains[1:]), ".") {
		target := host + "." + strings.TrimPrefix(domain, ".")
		if _, ok := dns.IsDomainName(target); !ok {
			return nil
		}
		switch found := s.find(&waits, q, target); found.Rcode {
		case dns.RcodeNameError:
		case dns.RcodeSuccess:
			return alias(q, target, found)
		default:
			return nil
		}
	}
	return nil
}

// find answers the question of q for another name.
func (s *Server) find(req *request, q *dns.Msg, name string) *dns.Msg {
	sub := new(dns.Msg)
	sub.SetQuestion(name, q.Question[0].Qtype)
	if q.IsEdns0() != nil {
		sub.SetEdns0(maxUDP, false)
	}
	if !dns.IsSubDomain(s.zone.domain, name) {
		return s.outside(req, sub, name)
	}
	r := s.zone.answer(sub, name)
	s.chase(req, r, sub)
	return r
}

// alias answers q with what was found under another name.
func alias(q *dns.Msg, target string, found *dns.Msg) *dns.Msg {
	r := new(dns.Msg)
	r.SetReply(q)
	r.RecursionAvailable, r.Truncated = true, found.Truncated
	shortest := uint32(math.MaxUint32)
	for _, rr := range found.Answer {
		shortest = min(shortest, rr.Header().Ttl)
	}
	h := header(q.Question[0].Name, dns.TypeCNAME)
	h.Ttl = min(h.Ttl, shortest) // a Service of this name could come to be
	r.Answer = append([]dns.RR{&dns.CNAME{Hdr: h, Target: target}}, found.Answer...)
	r.Ns = found.Ns
	return r
}
