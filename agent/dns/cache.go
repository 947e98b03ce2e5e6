package dns

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// Bounds of the cache. Positive and negative answers have room of their own, as in
// CoreDNS's plugin cache, so that names which somebody makes up do not push out those
// that others use. The longest lives are those of `cache 30`, which clusters with
// CoreDNS have.
const (
	positiveMax = 8192
	negativeMax = 4096
	zoneMax     = 4096 // answers from the cluster's zone
	completeMax = 4096 // searches that were completed

	cacheTTL = 30 * time.Second
	// noSOATTL is the life of a negative answer that does not say how long it holds. RFC
	// 2308 section 5 would not keep it, as two servers could hold it for each other for
	// ever; the node's resolvers never ask this server, and some stubs (systemd-resolved)
	// leave the SOA out of every answer.
	noSOATTL = 5 * time.Second

	// maxStale is how long an answer may serve after its time while no server gives a
	// newer one: CoreDNS's default of serve_stale. RFC 8767 section 5 would allow days.
	maxStale = time.Hour
	// staleTTL is the time to live of such an answer, staleRecheck the time until servers
	// are asked again, staleWait how long a client waits for them (RFC 8767 sections 4, 5).
	staleTTL     = 30
	staleRecheck = 5 * time.Second
	staleWait    = 1800 * time.Millisecond

	// An answer that was used prefetchHits times is asked for again when a tenth of its
	// life is left, as CoreDNS's prefetch does; at most maxPrefetches at one time.
	prefetchHits  = 3
	prefetchLife  = 5 * time.Second // one that lives shorter is not worth it
	maxPrefetches = 32

	cacheShards = 16
)

// Flags of a key: what of a query beside its question changes the answer.
const (
	keyCD = 1 << iota
	keyEDNS
	keyDO
)

const (
	maxName = 255         // bytes of a name (RFC 1035 section 2.3.4)
	maxKey  = maxName + 3 // and type and flags
	maxMark = 8           // bytes of the search domains that a completed answer is for
)

// key names a stored answer: the question's name on the wire in lower case, its type
// and the flags.
type key []byte

func (k key) qtype() uint16 { return binary.BigEndian.Uint16(k[len(k)-3:]) }
func (k key) flags() byte   { return k[len(k)-1] }
func (k key) name() []byte  { return k[:len(k)-3] }

// keyOf is the key of a query that the library read; nil when the name cannot be sent.
func keyOf(q *dns.Msg) key {
	var buf [maxKey]byte
	n, err := dns.PackDomainName(q.Question[0].Name, buf[:maxName], 0, nil, false)
	if err != nil {
		return nil
	}
	lower(buf[:n])
	k := binary.BigEndian.AppendUint16(append(make(key, 0, n+3), buf[:n]...), q.Question[0].Qtype)
	flags := byte(0)
	if q.CheckingDisabled {
		flags = keyCD
	}
	if opt := q.IsEdns0(); opt != nil {
		flags |= keyEDNS
		if opt.Do() {
			flags |= keyDO
		}
	}
	return append(k, flags)
}

// lower changes a name on the wire; the lengths of labels are below any letter.
func lower(name []byte) {
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			name[i] = c + 'a' - 'A'
		}
	}
}

// stored is an answer as it is sent, but for the ID, the bit RD, the spelling of the
// question and the times to live. All but the atomic fields stay as they are.
type stored struct {
	wire     []byte
	ttls     []uint16 // where the times to live are
	negative bool
	// generation is that of the tables that an answer from the cluster's zone was made
	// from, 0 for another one.
	generation uint64
	// tables is the same for a completed search, which has an end as well.
	tables uint64

	since   time.Time
	expires time.Time

	hits     atomic.Uint32
	fetching atomic.Bool  // it is being asked for again
	recheck  atomic.Int64 // until when it serves although it is old, after since
}

// stale tells an answer that is old and may serve.
func (s *stored) stale(now time.Time) bool {
	return now.After(s.expires) && now.Sub(s.expires) < maxStale
}

// serves tells whether it is what a client gets without a look at the servers.
func (s *stored) serves(now time.Time) bool {
	return !now.After(s.expires) || now.Sub(s.since) < time.Duration(s.recheck.Load()) && s.stale(now)
}

// failed has an old answer serve for a moment: servers are not asked at each query.
func (s *stored) failed(now time.Time) { s.recheck.Store(int64(now.Sub(s.since) + staleRecheck)) }

// popular tells, once, that the answer should be asked for again before its end.
func (s *stored) popular(now time.Time) bool {
	life := s.expires.Sub(s.since)
	return s.hits.Add(1) >= prefetchHits && life >= prefetchLife && s.expires.Sub(now) <= life/10 &&
		!s.fetching.Load() && s.fetching.CompareAndSwap(false, true)
}

const headerSize = 12

// appendTo appends the answer to a query whose header and question are given.
func (s *stored) appendTo(out, query []byte, name int, now time.Time) []byte {
	const recursionDesired = 1
	from := len(out)
	out = append(out, s.wire...)
	answer := out[from:]
	copy(answer[:2], query[:2])
	answer[2] = answer[2]&^recursionDesired | query[2]&recursionDesired
	copy(answer[headerSize:], query[headerSize:headerSize+name])
	if s.generation != 0 {
		return out
	}
	old := now.After(s.expires)
	age := uint32(max(0, now.Sub(s.since)) / time.Second)
	for _, at := range s.ttls {
		left := uint32(staleTTL)
		if !old {
			has := binary.BigEndian.Uint32(answer[at:])
			left = has - min(age, has)
		}
		binary.BigEndian.PutUint32(answer[at:], left)
	}
	return out
}

// msg is the answer as the library reads it.
func (s *stored) msg(q *dns.Msg, k key, now time.Time) *dns.Msg {
	query := append(make([]byte, headerSize, headerSize+len(k)), k.name()...)
	r := new(dns.Msg)
	if r.Unpack(s.appendTo(nil, query, len(k.name()), now)) != nil {
		return nil // it was packed by us
	}
	r.Id, r.RecursionDesired, r.Question = q.Id, q.RecursionDesired, q.Question
	return r
}

// answerCache holds answers up to a number.
type answerCache struct {
	max    int // of a shard
	seed   maphash.Seed
	shards [cacheShards]shard

	evicted atomic.Uint64
}

type shard struct {
	mu sync.Mutex
	by map[string]*stored
}

func newCache(entries int) *answerCache {
	c := &answerCache{max: entries / cacheShards, seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].by = map[string]*stored{}
	}
	return c
}

func (c *answerCache) shard(k key) *shard { return &c.shards[maphash.Bytes(c.seed, k)%cacheShards] }

func (c *answerCache) get(k key) *stored {
	s := c.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by[string(k)]
}

// evictionSample is how many answers are compared to find one that goes.
const evictionSample = 8

func (c *answerCache) put(k key, e *stored) {
	s := c.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.by[string(k)]; !there && len(s.by) >= c.max {
		c.evict(s)
	}
	s.by[string(k)] = e
}

// evict takes out the one of a few that ends first.
func (c *answerCache) evict(s *shard) {
	var victim string
	var ends time.Time
	n := 0
	for k, e := range s.by {
		if n == 0 || e.expires.Before(ends) {
			victim, ends = k, e.expires
		}
		if n++; n == evictionSample {
			break
		}
	}
	delete(s.by, victim)
	c.evicted.Add(1)
}

func (c *answerCache) remove(k key) {
	s := c.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.by, string(k))
}

func (c *answerCache) len() int {
	n := 0
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += len(s.by)
		s.mu.Unlock()
	}
	return n
}

func (c *answerCache) clear() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		clear(s.by)
		s.mu.Unlock()
	}
}

// pack makes what is stored of an answer; nil for one that is too large for any
// datagram: the cache's size is bounded.
func pack(k key, r *dns.Msg) *stored {
	sent := *r
	sent.Id, sent.Compress = 0, true
	name, _, err := dns.UnpackDomainName(k.name(), 0)
	if err != nil {
		return nil
	}
	sent.Question = []dns.Question{{Name: name, Qtype: k.qtype(), Qclass: dns.ClassINET}}
	sent.Extra = withoutOPT(r.Extra)
	if k.flags()&keyEDNS != 0 {
		sent.SetEdns0(maxUDP, k.flags()&keyDO != 0)
	}
	wire, err := sent.Pack()
	if err != nil || len(wire) > maxUDP {
		return nil
	}
	e := &stored{wire: wire}
	at := headerSize + len(k.name()) + 4 // after the question with its type and class
	for range len(sent.Answer) + len(sent.Ns) + len(sent.Extra) {
		if _, at, err = dns.UnpackDomainName(wire, at); err != nil || at+10 > len(wire) {
			return nil
		}
		if binary.BigEndian.Uint16(wire[at:]) != dns.TypeOPT {
			e.ttls = append(e.ttls, uint16(at+4))
		}
		at += 10 + int(binary.BigEndian.Uint16(wire[at+8:]))
	}
	return e
}

func withoutOPT(extra []dns.RR) []dns.RR {
	var out []dns.RR
	for _, rr := range extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			out = append(out, rr)
		}
	}
	return out
}

// lifeOf is how long an answer of a server may be kept, 0 for not at all, and whether
// it is negative: a name or a type that is not there (RFC 2308 sections 2 and 5).
func lifeOf(r *dns.Msg, qtype uint16) (life time.Duration, negative bool) {
	if r.Truncated || r.Rcode != dns.RcodeSuccess && r.Rcode != dns.RcodeNameError {
		return 0, false
	}
	shortest := uint32(math.MaxUint32)
	negative = true
	for _, rr := range r.Answer {
		h := rr.Header()
		shortest = min(shortest, h.Ttl)
		if r.Rcode == dns.RcodeSuccess && (h.Rrtype == qtype || qtype == dns.TypeANY) {
			negative = false
		}
	}
	life, soa := cacheTTL, false
	for _, rr := range r.Ns {
		shortest = min(shortest, rr.Header().Ttl)
		if s, ok := rr.(*dns.SOA); ok && negative {
			shortest, soa = min(shortest, s.Minttl), true
		}
	}
	if negative && !soa {
		life = noSOATTL
	}
	return min(life, time.Duration(shortest)*time.Second), negative
}
