package dns

import (
	"context"
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

	cacheMax    = 1000
	cacheTTL    = 30 * time.Second
	cacheTTLNeg = 5 * time.Second
)

// forwarder asks the node's resolvers.
type forwarder struct {
	file string
	own  []netip.Addr // never ask ourselves

	mu      sync.Mutex
	servers []string
	read    time.Time            // when the file was looked at
	changed time.Time            // its modification time
	resting map[string]time.Time // silent servers and until when
	cache   map[string]cached
}

type cached struct {
	msg     *dns.Msg
	stored  time.Time
	expires time.Time
}

func newForwarder(file string, own []netip.Addr) *forwarder {
	return &forwarder{file: file, own: own, resting: map[string]time.Time{}, cache: map[string]cached{}}
}

// forward answers from the cache or from a server; SERVFAIL when none answers.
func (f *forwarder) forward(q *dns.Msg, tcp bool) *dns.Msg {
	now := time.Now()
	key := cacheKey(q)
	if r := f.fromCache(key, q, now); r != nil {
		return r
	}
	ctx, cancel := context.WithTimeout(context.Background(), forwardWait)
	defer cancel()
	for _, server := range f.upstreams(now) {
		r, err := exchange(ctx, server, q, tcp)
		if err != nil {
			f.rest(server)
			continue
		}
		f.wake(server)
		if r.Rcode == dns.RcodeServerFailure || r.Rcode == dns.RcodeRefused {
			continue
		}
		f.store(key, r, now)
		return r
	}
	r := refuse(q, dns.RcodeServerFailure)
	r.RecursionAvailable = true
	return r
}

func exchange(ctx context.Context, server string, q *dns.Msg, tcp bool) (*dns.Msg, error) {
	c := &dns.Client{Timeout: upstreamWait, UDPSize: dns.DefaultMsgSize}
	if tcp {
		c.Net = "tcp"
	}
	sent := q.Copy()
	sent.Id = dns.Id()
	r, _, err := c.ExchangeContext(ctx, sent, server)
	if err != nil {
		return nil, err
	}
	r.Id = q.Id
	return r, nil
}

// upstreams lists the servers to ask, in order, without those at rest.
func (f *forwarder) upstreams(now time.Time) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.read) > confReload {
		f.reload(now)
	}
	return slices.DeleteFunc(slices.Clone(f.servers), func(s string) bool { return now.Before(f.resting[s]) })
}

func (f *forwarder) reload(now time.Time) {
	f.read = now
	fi, err := os.Stat(f.file)
	if err != nil {
		f.servers = nil
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
	for _, s := range conf.Servers {
		a, err := netip.ParseAddr(s)
		if err != nil || slices.Contains(f.own, a) {
			continue
		}
		f.servers = append(f.servers, net.JoinHostPort(s, conf.Port))
	}
}

func (f *forwarder) rest(server string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resting[server] = time.Now().Add(restAfter)
}

func (f *forwarder) wake(server string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.resting, server)
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
func (f *forwarder) fromCache(key string, q *dns.Msg, now time.Time) *dns.Msg {
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
	r.Id = q.Id
	r.Question = q.Question // as spelt by this client
	age := uint32(now.Sub(c.stored) / time.Second)
	for _, rrs := range [][]dns.RR{r.Answer, r.Ns, r.Extra} {
		for _, rr := range rrs {
			if h := rr.Header(); h.Rrtype != dns.TypeOPT {
				h.Ttl -= min(age, h.Ttl)
			}
		}
	}
	return r
}

// store keeps complete answers, positive and negative, for a short while.
func (f *forwarder) store(key string, r *dns.Msg, now time.Time) {
	if r.Truncated || r.Rcode != dns.RcodeSuccess && r.Rcode != dns.RcodeNameError {
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
