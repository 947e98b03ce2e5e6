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

	cacheMax    = 1000
	cacheTTL    = 30 * time.Second
	cacheTTLNeg = 5 * time.Second
)

// forwarder asks the node's resolvers.
type forwarder struct {
	file   string
	own    []netip.Addr // never ask ourselves
	places *shares

	mu       sync.Mutex
	servers  []string
	read     time.Time            // when the file was looked at
	changed  time.Time            // its modification time
	resting  map[rest]time.Time   // since when
	answered map[string]time.Time // when a server answered last
	cache    map[string]cached
}

// rest is a server that was silent to a client. Another client's queries do
// not suffer: anybody can ask for a name whose own server is silent.
type rest struct {
	server string
	client netip.Addr
}

type cached struct {
	msg     *dns.Msg
	stored  time.Time
	expires time.Time
}

func newForwarder(file string, own []netip.Addr) *forwarder {
	return &forwarder{
		file:     file,
		own:      own,
		places:   newShares(maxForwards),
		resting:  map[rest]time.Time{},
		answered: map[string]time.Time{},
		cache:    map[string]cached{},
	}
}

// forward answers from the cache or from a server; SERVFAIL when none answers.
func (f *forwarder) forward(req *request, q *dns.Msg) *dns.Msg {
	key := cacheKey(q)
	r := f.fromCache(key, time.Now())
	if r == nil {
		r = f.askAll(req, key, q)
	}
	if r == nil {
		r = refuse(q, dns.RcodeServerFailure)
		r.RecursionAvailable = true
		return r
	}
	r.Id, r.RecursionDesired, r.Question = q.Id, q.RecursionDesired, q.Question // as spelt by this client
	if opt := q.IsEdns0(); opt != nil {
		r.SetEdns0(maxUDP, opt.Do())
	}
	return r
}

// askAll asks the servers in order; nil when none has an answer.
func (f *forwarder) askAll(req *request, key string, q *dns.Msg) *dns.Msg {
	if !f.places.take(req.client) {
		return nil
	}
	defer f.places.give(req.client)
	if _, err := q.Pack(); err != nil {
		return nil // a name that cannot be asked is no server's fault
	}
	waits := *req
	var cancel context.CancelFunc
	waits.ctx, cancel = context.WithTimeout(req.ctx, forwardWait)
	defer cancel()
	now := time.Now()
	for _, server := range f.upstreams(req.client, now) {
		r, err := exchange(&waits, server, onward(q))
		if err != nil {
			f.rest(rest{server, req.client})
			continue
		}
		f.wake(server)
		if r.Rcode == dns.RcodeServerFailure || r.Rcode == dns.RcodeRefused {
			continue
		}
		r.Extra = slices.DeleteFunc(r.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
		f.store(key, r, now)
		return r
	}
	return nil
}

// onward is the query that a server is asked: the question, and of the rest
// only what the cache tells apart, so that no client shapes another's answer.
func onward(q *dns.Msg) *dns.Msg {
	sent := &dns.Msg{Question: q.Question}
	sent.Id, sent.RecursionDesired, sent.CheckingDisabled = dns.Id(), true, q.CheckingDisabled
	if opt := q.IsEdns0(); opt != nil {
		sent.SetEdns0(maxUDP, opt.Do())
	}
	return sent
}

// upstreams lists the servers to ask, in order, without those that are at
// rest for the client.
func (f *forwarder) upstreams(client netip.Addr, now time.Time) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.read) > confReload {
		f.reload(now)
	}
	return slices.DeleteFunc(slices.Clone(f.servers), func(s string) bool {
		since, ok := f.resting[rest{s, client}]
		return ok && now.Sub(since) < restAfter && since.After(f.answered[s])
	})
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

func cacheKey(q *dns.Msg) string {
	qu := q.Question[0]
	var b strings.Builder
	b.WriteString(strings.ToLower(qu.Name))
	flags := byte(0)
	if q.CheckingDisabled {
		flags = 1
	}
	if opt := q.IsEdns0(); opt != nil {
		flags |= 2
		if opt.Do() {
			flags |= 4
		}
	}
	b.Write([]byte{byte(qu.Qtype >> 8), byte(qu.Qtype), flags})
	return b.String()
}

// fromCache returns a stored answer with its remaining time to live.
func (f *forwarder) fromCache(key string, now time.Time) *dns.Msg {
	f.mu.Lock()
	c, ok := f.cache[key]
	if ok && now.After(c.expires) {
		delete(f.cache, key)
		ok = false
	}
	f.mu.Unlock()
	if !ok {
		return nil
	}
	r := c.msg.Copy()
	age := uint32(now.Sub(c.stored) / time.Second)
	for _, rrs := range [][]dns.RR{r.Answer, r.Ns, r.Extra} {
		for _, rr := range rrs {
			h := rr.Header()
			h.Ttl -= min(age, h.Ttl)
		}
	}
	return r
}

// store keeps complete answers, positive and negative, for a short while. A
// large one is not kept: the cache's size is bounded.
func (f *forwarder) store(key string, r *dns.Msg, now time.Time) {
	if r.Truncated || r.Len() > maxUDP || r.Rcode != dns.RcodeSuccess && r.Rcode != dns.RcodeNameError {
		return
	}
	life := cacheTTL
	if len(r.Answer) == 0 {
		life = cacheTTLNeg
	}
	for _, rrs := range [][]dns.RR{r.Answer, r.Ns} {
		for _, rr := range rrs {
			life = min(life, time.Duration(rr.Header().Ttl)*time.Second)
		}
	}
	if life <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for k := range f.cache { // some entry must go; which one hardly matters
		if len(f.cache) < cacheMax {
			break
		}
		delete(f.cache, k)
	}
	f.cache[key] = cached{r.Copy(), now, now.Add(life)}
}
