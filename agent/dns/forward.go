package dns

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	upstreamWait = 1500 * time.Millisecond // for one server
	forwardWait  = 4 * time.Second         // for all; clients ask again after 5 s
	// restAfter is how long a server that was silent is not asked while the
	// others, or none, answer: names must fail quickly on a machine without a network.
	restAfter = 5 * time.Second
	// confReload is how old the list of servers may get.
	confReload = 5 * time.Second

	// maxForwards is how many queries wait for upstream servers at one time,
	// each with a socket; as CoreDNS's max_concurrent is set in most clusters.
	maxForwards = 1000
	maxRests    = 1000
)

// Upstreams say who is asked for names that are not the cluster's.
type Upstreams struct {
	// Servers are asked for all names without a server of their own; empty for those of
	// the node's resolv.conf. Each is an address, with or without a port.
	Servers []string
	// Stubs are domains that have servers of their own.
	Stubs map[string][]string
}

// stub is a domain with servers of its own.
type stub struct {
	domain  string // fully qualified, lower case
	servers []string
}

// forwarder asks the node's resolvers.
type forwarder struct {
	file   string
	own    []netip.Addr // never ask ourselves
	places *shares
	counts *Counts

	positive, negative *answerCache
	prefetches         chan struct{} // places
	running            sync.WaitGroup

	mu       sync.Mutex
	fixed    []string // instead of those of the file
	stubs    []stub   // the longest first
	servers  []string
	read     time.Time            // when the file was looked at
	changed  time.Time            // its modification time
	resting  map[rest]time.Time   // since when
	answered map[string]time.Time // when a server answered last
}

// rest is a server that was silent to a client. Another client's queries do
// not suffer: anybody can ask for a name whose own server is silent.
type rest struct {
	server string
	client netip.Addr
}

func newForwarder(file string, own []netip.Addr, counts *Counts) *forwarder {
	return &forwarder{
		file:       file,
		own:        own,
		places:     newShares(maxForwards),
		counts:     counts,
		positive:   newCache(positiveMax),
		negative:   newCache(negativeMax),
		prefetches: make(chan struct{}, maxPrefetches),
		resting:    map[rest]time.Time{},
		answered:   map[string]time.Time{},
	}
}

// set changes who is asked. What others answered is forgotten.
func (f *forwarder) set(u Upstreams) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fixed, f.stubs = f.usable(u.Servers), nil
	for domain, servers := range u.Stubs {
		f.stubs = append(f.stubs, stub{dns.CanonicalName(domain), f.usable(servers)})
	}
	slices.SortFunc(f.stubs, func(a, b stub) int {
		if n := len(b.domain) - len(a.domain); n != 0 {
			return n
		}
		return strings.Compare(a.domain, b.domain)
	})
	clear(f.answered)
	f.positive.clear()
	f.negative.clear()
}

// usable are servers with their ports, without ourselves.
func (f *forwarder) usable(servers []string) []string {
	var out []string
	for _, s := range servers {
		at, err := ParseServer(s)
		if err == nil && !slices.Contains(f.own, at.Addr()) {
			out = append(out, at.String())
		}
	}
	return out
}

// ParseServer reads a server's address, with a port or without one.
func ParseServer(s string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.AddrPortFrom(a, 53), nil
	}
	return netip.ParseAddrPort(s)
}

// lookup finds what is stored, old answers too.
func (f *forwarder) lookup(k key) *stored {
	if e := f.positive.get(k); e != nil {
		return e
	}
	return f.negative.get(k)
}

// ready is an answer of a size that can be given at once, counted as used.
func (f *forwarder) ready(req *request, k key, limit int, now time.Time) *stored {
	e := f.lookup(k)
	if e == nil || len(e.wire) > limit || !e.serves(now) {
		return nil
	}
	f.counts.hit(e.negative, now.After(e.expires))
	if e.popular(now) {
		f.prefetch(req.ctx, slices.Clone(k), e)
	}
	return e
}

// prefetch asks again for what is about to end, unless enough of that is done already.
func (f *forwarder) prefetch(ctx context.Context, k key, e *stored) {
	select {
	case f.prefetches <- struct{}{}:
	default:
		e.fetching.Store(false)
		return
	}
	f.counts.prefetches.Add(1)
	f.running.Go(func() {
		defer func() { <-f.prefetches }()
		name, _, err := dns.UnpackDomainName(k.name(), 0)
		if err != nil {
			return
		}
		q := &dns.Msg{Question: []dns.Question{{Name: name, Qtype: k.qtype(), Qclass: dns.ClassINET}}}
		q.CheckingDisabled = k.flags()&keyCD != 0
		if k.flags()&keyEDNS != 0 {
			q.SetEdns0(maxUDP, k.flags()&keyDO != 0)
		}
		f.askAll(&request{ctx: ctx}, k, q)
	})
}

// forward answers from the cache or from a server; SERVFAIL when none answers.
func (f *forwarder) forward(req *request, q *dns.Msg) *dns.Msg {
	now := time.Now()
	k := keyOf(q)
	if k == nil { // a name that cannot be asked is no server's fault
		return unanswered(q)
	}
	var r *dns.Msg
	if e := f.ready(req, k, maxUDP, now); e != nil {
		r = e.msg(q, k, now)
	}
	if r == nil {
		f.counts.misses.Add(1)
		r = f.ask(req, k, q, now)
	}
	if r == nil {
		return unanswered(q)
	}
	r.Id, r.RecursionDesired, r.Question = q.Id, q.RecursionDesired, q.Question // as spelt by this client
	r.Extra = withoutOPT(r.Extra)
	if opt := q.IsEdns0(); opt != nil {
		r.SetEdns0(maxUDP, opt.Do())
	}
	return r
}

func unanswered(q *dns.Msg) *dns.Msg {
	r := refuse(q, dns.RcodeServerFailure)
	r.RecursionAvailable = true
	return r
}

// ask has the servers asked, and takes an old answer where none has a newer one (RFC
// 8767).
func (f *forwarder) ask(req *request, k key, q *dns.Msg, now time.Time) *dns.Msg {
	e := f.lookup(k)
	if e == nil || !e.stale(now) {
		return f.askAll(req, k, q)
	}
	waits := *req
	var cancel context.CancelFunc
	waits.ctx, cancel = context.WithTimeout(req.ctx, staleWait)
	defer cancel()
	if r := f.askAll(&waits, k, q); r != nil {
		return r
	}
	now = time.Now()
	e.failed(now)
	f.counts.hit(e.negative, true)
	return e.msg(q, k, now)
}

// askAll asks the servers in order; nil when none has an answer.
func (f *forwarder) askAll(req *request, k key, q *dns.Msg) *dns.Msg {
	if !f.places.take(req.client) {
		f.counts.rejects.Add(1)
		return nil
	}
	defer f.places.give(req.client)
	waits := *req
	var cancel context.CancelFunc
	waits.ctx, cancel = context.WithTimeout(req.ctx, forwardWait)
	defer cancel()
	for _, server := range f.upstreams(req.client, strings.ToLower(q.Question[0].Name), time.Now()) {
		began := time.Now()
		r, err := exchange(&waits, server, onward(q))
		if err != nil {
			if waits.ctx.Err() == nil || time.Since(began) >= upstreamWait/2 { // it had its time
				f.rest(rest{server, req.client})
			}
			f.counts.upstream(server, "", time.Since(began))
			continue
		}
		f.counts.upstream(server, dns.RcodeToString[r.Rcode], time.Since(began))
		f.wake(server)
		if r.Rcode == dns.RcodeServerFailure || r.Rcode == dns.RcodeRefused {
			continue
		}
		r.Extra = withoutOPT(r.Extra)
		f.store(k, r, time.Now())
		return r
	}
	return nil
}

// onward is the query that a server is asked: the question, and of the rest
// only what the cache tells apart, so that no client shapes another's answer.
func onward(q *dns.Msg) *dns.Msg {
	sent := &dns.Msg{Question: slices.Clone(q.Question)}
	sent.Question[0].Name = strings.ToLower(sent.Question[0].Name)
	sent.Id, sent.RecursionDesired, sent.CheckingDisabled = dns.Id(), true, q.CheckingDisabled
	if opt := q.IsEdns0(); opt != nil {
		sent.SetEdns0(maxUDP, opt.Do())
	}
	return sent
}

// upstreams lists the servers to ask for a name, in order, without those that are at
// rest for the client.
func (f *forwarder) upstreams(client netip.Addr, name string, now time.Time) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.serversFor(name, now)), func(s string) bool {
		since, ok := f.resting[rest{s, client}]
		return ok && now.Sub(since) < restAfter && since.After(f.answered[s])
	})
}

func (f *forwarder) serversFor(name string, now time.Time) []string {
	for _, s := range f.stubs {
		if dns.IsSubDomain(s.domain, name) {
			return s.servers
		}
	}
	if len(f.fixed) > 0 {
		return f.fixed
	}
	if now.Sub(f.read) > confReload {
		f.reload(now)
	}
	return f.servers
}

func (f *forwarder) reload(now time.Time) {
	f.read = now
	fi, err := os.Stat(f.file)
	if err != nil {
		f.servers, f.changed = nil, time.Time{}
		return
	}
	if fi.ModTime().Equal(f.changed) {
		return
	}
	conf, err := dns.ClientConfigFromFile(f.file)
	if err != nil {
		return
	}
	f.changed, f.servers = fi.ModTime(), nil
	clear(f.answered)
	for _, s := range conf.Servers {
		a, err := netip.ParseAddr(s)
		if err != nil || slices.Contains(f.own, a) {
			continue
		}
		f.servers = append(f.servers, net.JoinHostPort(s, conf.Port))
	}
}

func (f *forwarder) rest(r rest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if len(f.resting) >= maxRests {
		maps.DeleteFunc(f.resting, func(_ rest, since time.Time) bool { return now.Sub(since) >= restAfter })
	}
	if len(f.resting) < maxRests {
		f.resting[r] = now
	}
}

func (f *forwarder) wake(server string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered[server] = time.Now()
}

// store keeps complete answers for a while. A name that came to be, or went, has no
// old answer beside the new one.
func (f *forwarder) store(k key, r *dns.Msg, now time.Time) {
	life, negative := lifeOf(r, k.qtype())
	if life <= 0 {
		return
	}
	e := pack(k, r)
	if e == nil {
		return
	}
	e.negative, e.since, e.expires = negative, now, now.Add(life)
	keeps, other := f.positive, f.negative
	if negative {
		keeps, other = f.negative, f.positive
	}
	keeps.put(k, e)
	other.remove(k)
}
