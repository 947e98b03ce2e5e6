package dns

import (
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/shoal-project/shoal/agent/metrics"
)

// Zones of the counts: the cluster's, and all else.
const (
	clusterZone = iota
	rootZone
	zones
)

// monitored are the types that CoreDNS's plugin metrics counts by name, as far as pods
// ask for them; others are "other".
var monitored = []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeTXT, dns.TypeMX, dns.TypeNS,
	dns.TypeSOA, dns.TypeCNAME, dns.TypeANY, dns.TypeHTTPS, dns.TypeDS, dns.TypeDNSKEY}

// timeBuckets are CoreDNS's (plugin.TimeBuckets), in seconds.
var timeBuckets = metrics.Exponential(0.00025, 2, 16)

const (
	maxRcodes    = 24 // BADCOOKIE, 23, is the largest
	maxUpstreams = 64 // servers that are counted by their address
)

// Counts are what the server counts, shown under the names of CoreDNS's plugins
// metrics, cache and forward (with its proxy), for the dashboards that are written for
// those.
type Counts struct {
	domain string

	requests  [zones][2][2][]atomic.Uint64 // by protocol (UDP, TCP), family (1, 2) and type
	responses [zones][maxRcodes]atomic.Uint64
	durations [zones]duration

	// Of the cache: hits by positive and negative.
	hits                      [2]atomic.Uint64
	misses, prefetches, stale atomic.Uint64

	rejects, panics atomic.Uint64

	mu        sync.Mutex
	server    *Server
	upstreams map[upstreamKey]*metrics.Buckets
}

type duration struct {
	mu sync.Mutex
	metrics.Buckets
}

type upstreamKey struct{ to, rcode string }

// NewCounts counts for a cluster domain.
func NewCounts(domain string) *Counts {
	c := &Counts{domain: dns.CanonicalName(domain), upstreams: map[upstreamKey]*metrics.Buckets{}}
	for z := range c.requests {
		for p := range c.requests[z] {
			for f := range c.requests[z][p] {
				c.requests[z][p][f] = make([]atomic.Uint64, len(monitored)+1)
			}
		}
	}
	return c
}

// follow has the sizes of a server's caches shown.
func (c *Counts) follow(s *Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = s
}

func typeIndex(qtype uint16) int {
	for i, t := range monitored {
		if t == qtype {
			return i
		}
	}
	return len(monitored)
}

// answered counts a query and its answer.
func (c *Counts) answered(req *request, zone int, qtype uint16, rcode int) {
	protocol, family := 0, 0
	if req.tcp {
		protocol = 1
	}
	if req.client.Is6() {
		family = 1
	}
	c.requests[zone][protocol][family][typeIndex(qtype)].Add(1)
	c.responses[zone][min(rcode, maxRcodes-1)].Add(1)
	took := time.Duration(0)
	if !req.began.IsZero() {
		took = time.Since(req.began)
	}
	d := &c.durations[zone]
	d.mu.Lock()
	d.Observe(timeBuckets, took)
	d.mu.Unlock()
}

func (c *Counts) hit(negative, stale bool) {
	i := 0
	if negative {
		i = 1
	}
	c.hits[i].Add(1)
	if stale {
		c.stale.Add(1)
	}
}

// upstream counts a question to a server; no rcode for one without an answer.
func (c *Counts) upstream(to, rcode string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := upstreamKey{to, rcode}
	b := c.upstreams[k]
	if b == nil {
		if len(c.upstreams) >= maxUpstreams*4 {
			return
		}
		b = new(metrics.Buckets)
		c.upstreams[k] = b
	}
	b.Observe(timeBuckets, took)
}

// Show puts all on a page.
func (c *Counts) Show(p *metrics.Page) {
	if c == nil {
		return
	}
	c.mu.Lock()
	s := c.server
	c.mu.Unlock()
	if s == nil {
		return
	}
	server := "dns://:" + strconv.Itoa(s.cfg.Port)
	if len(s.cfg.Addrs) > 0 {
		server = "dns://" + netip.AddrPortFrom(s.cfg.Addrs[0], uint16(s.cfg.Port)).String()
	}
	c.showRequests(p, server)
	c.showCache(p, server, s.up)
	c.showForward(p)
	p.Family("coredns_panics_total", metrics.Counter, "A metrics that counts the number of panics.").
		Put(float64(c.panics.Load()))
}

func (c *Counts) zoneName(zone int) string { return [zones]string{c.domain, "."}[zone] }

func (c *Counts) showRequests(p *metrics.Page, server string) {
	f := p.Family("coredns_dns_requests_total", metrics.Counter,
		"Counter of DNS requests made per zone, protocol and family.")
	for z := range zones {
		for protocol, byFamily := range c.requests[z] {
			for family, byType := range byFamily {
				for i := range byType {
					n := byType[i].Load()
					if n == 0 {
						continue
					}
					kind := "other"
					if i < len(monitored) {
						kind = dns.TypeToString[monitored[i]]
					}
					f.Put(float64(n), "server", server, "zone", c.zoneName(z), "view", "",
						"proto", [2]string{"udp", "tcp"}[protocol], "family", strconv.Itoa(family+1), "type", kind)
				}
			}
		}
	}
	f = p.Family("coredns_dns_request_duration_seconds", metrics.Histogram,
		"Histogram of the time (in seconds) each request took per zone.")
	for z := range zones {
		d := &c.durations[z]
		d.mu.Lock()
		b := d.Clone()
		d.mu.Unlock()
		f.PutBuckets(timeBuckets, b, "server", server, "zone", c.zoneName(z), "view", "")
	}
	f = p.Family("coredns_dns_responses_total", metrics.Counter, "Counter of response status codes.")
	for z := range zones {
		for rcode := range c.responses[z] {
			if n := c.responses[z][rcode].Load(); n > 0 {
				f.Put(float64(n), "server", server, "zone", c.zoneName(z), "view", "",
					"rcode", dns.RcodeToString[rcode], "plugin", "")
			}
		}
	}
}

func (c *Counts) showCache(p *metrics.Page, server string, up *forwarder) {
	at := []string{"server", server, "zones", ".", "view", ""}
	types := [2]string{"success", "denial"}
	caches := [2]*answerCache{up.positive, up.negative}
	labels := func(i int) []string { return append([]string{"type", types[i]}, at...) }
	f := p.Family("coredns_cache_entries", metrics.Gauge, "The number of elements in the cache.")
	for i := range caches {
		f.Put(float64(caches[i].len()), labels(i)...)
	}
	f = p.Family("coredns_cache_requests_total", metrics.Counter, "The count of cache requests.")
	f.Put(float64(c.hits[0].Load()+c.hits[1].Load()+c.misses.Load()), at...)
	f = p.Family("coredns_cache_hits_total", metrics.Counter, "The count of cache hits.")
	for i := range caches {
		f.Put(float64(c.hits[i].Load()), labels(i)...)
	}
	f = p.Family("coredns_cache_evictions_total", metrics.Counter, "The count of cache evictions.")
	for i := range caches {
		f.Put(float64(caches[i].evicted.Load()), labels(i)...)
	}
	for _, x := range []struct {
		name, help string
		n          *atomic.Uint64
	}{
		{"misses", "The count of cache misses. Deprecated, derive misses from cache hits/requests counters.", &c.misses},
		{"prefetch", "The number of times the cache has prefetched a cached item.", &c.prefetches},
		{"served_stale", "The number of requests served from stale cache entries.", &c.stale},
	} {
		p.Family("coredns_cache_"+x.name+"_total", metrics.Counter, x.help).Put(float64(x.n.Load()), at...)
	}
}

func (c *Counts) showForward(p *metrics.Page) {
	p.Family("coredns_forward_max_concurrent_rejects_total", metrics.Counter,
		"Counter of the number of queries rejected because the concurrent queries were at maximum.").
		Put(float64(c.rejects.Load()))
	f := p.Family("coredns_proxy_request_duration_seconds", metrics.Histogram,
		"Histogram of the time each request took.")
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, b := range c.upstreams {
		f.PutBuckets(timeBuckets, b.Clone(), "proxy_name", "forward", "to", k.to, "rcode", k.rcode)
	}
}
