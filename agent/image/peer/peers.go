package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/time/rate"
)

// Least is the size in bytes of the smallest layer that is looked for at other nodes:
// below it, asking costs as much as getting it.
const Least = 64 << 10

// Member is another node of the gossip, or this one.
type Member struct {
	Name  string
	Addr  netip.Addr
	Since time.Time // since when it lives; a keeper of keys that came back knows nothing
}

// Store is what the node has of images.
type Store interface {
	// Manifest is one of an image that the node has, or is getting.
	Manifest(ctx context.Context, d digest.Digest) ([]byte, error)
	// Layer opens a layer of which the node has all, or the beginning.
	Layer(ctx context.Context, desc ocispec.Descriptor) (Layer, error)
	// Manifests are those of the images that the node has all of.
	Manifests(ctx context.Context) ([][]byte, error)
}

// Layer is what is there of a layer.
type Layer interface {
	io.ReaderAt
	io.Closer
	// Grown waits until more than n bytes are there, and returns how many there are. Errors:
	// no more will come; ctx has ended.
	Grown(ctx context.Context, n int64) (int64, error)
}

// Config of Peers.
type Config struct {
	Name string // of this node
	Port uint16 // where this node gives layers: the kubelet's
	// Members are the nodes that live, this one included.
	Members func() []Member
	// Changed has a token when Members may have changed.
	Changed <-chan struct{}
	// Ask asks a member, and returns its answer (gossip.Group.Ask).
	Ask func(ctx context.Context, member string, question []byte) ([]byte, error)
	// Credentials are this node's certificate as a client, and the CAs of other nodes'.
	Credentials func() (*tls.Certificate, *x509.CertPool, error)
	Store       Store
	// Rate is how many bytes a second all others get from here; 0: no limit.
	Rate int64
	// Received and Sent are told how many bytes came from other nodes, and went to them.
	Received, Sent func(n int)
	Log            *slog.Logger
}

// Peers are the nodes that this one gets layers from, and gives them to.
type Peers struct {
	cfg       Config
	book      *Book
	transport *http.Transport
	limiter   *rate.Limiter // nil: no limit

	mu     sync.Mutex
	banned map[string]time.Time // until when
	paces  map[string]*pace     // of nodes
	mute   map[string]muteness  // of keepers that did not answer in time
	giving map[string]int       // requests that are answered now, by the names in certificates
	// givingAll is their sum.
	givingAll int
	told      map[Key]notice // who was told that this node has a layer
}

// notice is what a keeper was told.
type notice struct {
	keeper
	at time.Time
}

// keeper is a member that keeps a key, in one of its lives.
type keeper struct {
	name  string
	since time.Time
}

// chunk is how many bytes are sent, and counted against the rate, at a time.
const chunk = 128 << 10

// New returns Peers. Run has them known to others.
func New(cfg Config) *Peers {
	p := &Peers{
		cfg: cfg, book: NewBook(),
		mute: map[string]muteness{}, giving: map[string]int{},
		banned: map[string]time.Time{}, paces: map[string]*pace{}, told: map[Key]notice{},
	}
	p.transport = p.newTransport()
	if cfg.Rate > 0 {
		p.limiter = rate.NewLimiter(rate.Limit(cfg.Rate), max(chunk, int(cfg.Rate/8)))
	}
	return p
}

// Close ends connections that nobody uses.
func (p *Peers) Close() { p.transport.CloseIdleConnections() }

// keepers are who knows about a key, best first: two, for the first may be gone.
func keepers(key Key, members []Member) []Member {
	type scored struct {
		Member
		score uint64
	}
	var list []scored
	for _, m := range members {
		h := fnv.New64a()
		_, _ = io.WriteString(h, m.Name)
		_, _ = h.Write(key[:])
		list = append(list, scored{m, h.Sum64()})
	}
	slices.SortFunc(list, func(a, b scored) int {
		switch {
		case a.score > b.score:
			return -1
		case a.score < b.score:
			return 1
		}
		return 0
	})
	var out []Member
	for _, s := range list[:min(len(list), 2)] {
		out = append(out, s.Member)
	}
	return out
}

// askTime is for an answer. Who looks for a layer asks the first keeper twice, as others may
// ask it too many questions just then, and then the second, with pauses of about askAgain
// and more: to go to the registry instead costs more.
const (
	askTime  = 2 * time.Second
	asks     = 4
	askAgain = 250 * time.Millisecond
	// muteTime is how long one is not asked that did not answer muteAsks questions in time, one
	// after the other: each layer would wait for it.
	muteTime = time.Minute
	muteAsks = 2
)

// muteness is how many questions a keeper did not answer since it answered one, and when the
// last of them was.
type muteness struct {
	asked int
	last  time.Time
}

var (
	errAlone = errors.New("there is no other node")
	errMute  = errors.New("the nodes that know who has the layer do not answer")
)

// ask asks the keeper of a key.
func (p *Peers) ask(ctx context.Context, key Key, q question) (a answer, err error) {
	members := p.cfg.Members()
	if len(members) < 2 {
		return a, errAlone
	}
	q.Port = p.cfg.Port
	list, times := keepers(key, members), 1
	if q.Verb == find {
		times = asks
	}
	err = errMute
	for i := range times {
		k := list[i*len(list)/asks]
		if k.Name == p.cfg.Name {
			return p.hear(p.cfg.Name, q), nil
		}
		if p.isMute(k.Name) {
			continue
		}
		if i > 0 && !errors.Is(err, errMute) {
			select {
			case <-time.After(rand.N(askAgain << i)):
			case <-ctx.Done():
				return a, ctx.Err()
			}
		}
		a, err = p.tell(ctx, k.Name, q)
		if ctx.Err() != nil {
			return a, err
		}
		p.heard(k.Name, err)
		if err == nil {
			return a, nil
		}
	}
	return a, err
}

// isMute tells whether a keeper is not to be asked, as it does not answer.
func (p *Peers) isMute(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.mute[node]
	return m.asked >= muteAsks && time.Since(m.last) < muteTime
}

// heard notes whether a keeper answered in time. One that refuses does.
func (p *Peers) heard(node string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetMute()
	if late := net.Error(nil); errors.As(err, &late) && late.Timeout() {
		p.mute[node] = muteness{p.mute[node].asked + 1, time.Now()}
	} else {
		delete(p.mute, node)
	}
}

// forgetMute forgets who has not been asked for a while. The caller holds mu.
func (p *Peers) forgetMute() {
	maps.DeleteFunc(p.mute, func(_ string, m muteness) bool { return time.Since(m.last) > muteTime })
}

func (p *Peers) tell(ctx context.Context, member string, q question) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	q.Port = p.cfg.Port
	said, err := p.cfg.Ask(ctx, member, q.encode())
	if err != nil {
		return answer{}, err
	}
	return decodeAnswer(said)
}

// Answer answers what another member asks; nil: it is no question about layers.
func (p *Peers) Answer(from string, asked []byte) []byte {
	q, _, err := decodeQuestion(asked)
	if err != nil {
		return nil
	}
	said, err := json.Marshal(p.hear(from, q))
	if err != nil {
		return nil
	}
	return said
}

// hear does what a decoded question says.
func (p *Peers) hear(from string, q question) (a answer) {
	now := time.Now()
	var keys []Key
	for _, k := range q.Keys {
		keys = append(keys, Key(k))
	}
	who := Source{from, q.Port}
	switch q.Verb {
	case find:
		alive := p.living()
		w := Wish{Source: who, Lost: q.Lost, Busy: q.Busy, Stalled: q.Stalled, Slow: q.Slow}
		a.Sources = p.book.Find(keys[0], w, now, alive)
	case still:
		p.book.Still(from, keys, now)
	case have:
		p.book.Have(who, keys, now)
	case gone:
		p.book.Gone(from, keys)
	}
	return a
}

func (p *Peers) living() func(string) bool {
	names := map[string]bool{}
	for _, m := range p.cfg.Members() {
		names[m.Name] = true
	}
	return func(node string) bool { return names[node] }
}

// ban has a node not asked for a time, at least.
func (p *Peers) ban(node string, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := time.Now().Add(pause); until.After(p.banned[node]) {
		p.banned[node] = until
	}
}

// How long a node is not asked: after what it sent was wrong, and when it is not reached,
// as a firewall may be before its port.
const (
	wrongTime       = 10 * time.Minute
	unreachableTime = time.Minute
)

// bans are the nodes that are not asked now.
func (p *Peers) bans() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.banned, func(_ string, until time.Time) bool { return now.After(until) })
	maps.DeleteFunc(p.paces, func(_ string, m *pace) bool { return m.open == 0 && now.Sub(m.since) > poorTime })
	return slices.Collect(maps.Keys(p.banned))
}

// How long after a change of members keepers are told what this node has: members come
// and go in crowds, and not all should tell the same one at once.
const (
	settleTime   = 5 * time.Second
	settleSpread = 5 * time.Second
	// tellAgain is after how long a keeper is told again what it believes for a time, and
	// forgetEvery how often what is too old is looked for.
	tellAgain   = believed / 4
	forgetEvery = time.Hour
)

// Run tells keepers what this node has, at its start, when others keep the keys and from time
// to time, and forgets what is too old, until ctx ends.
func (p *Peers) Run(ctx context.Context) error {
	var known []Member
	old := time.NewTicker(forgetEvery)
	defer old.Stop()
	due := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settleTime + rand.N(settleSpread)):
		}
		if now := p.cfg.Members(); due || !slices.Equal(now, known) { // other news of them come, too
			known, due = now, false
			p.forget()
			p.announce(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.cfg.Changed:
		case <-old.C:
			due = true
		}
	}
}

// forget forgets what has become too old.
func (p *Peers) forget() {
	p.book.Sweep(time.Now(), p.living())
	p.bans()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetMute()
}

// announce tells each keeper which of its keys this node has. One that does not hear it
// is told with the next change.
func (p *Peers) announce(ctx context.Context) {
	members := p.cfg.Members()
	if len(members) < 2 {
		return
	}
	manifests, err := p.cfg.Store.Manifests(ctx)
	if err != nil {
		p.cfg.Log.Debug("other nodes are not told which images are here", "err", err)
		return
	}
	news, all := map[keeper][]Key{}, map[Key]bool{}
	for _, m := range manifests {
		for _, desc := range layersOf(m) {
			key := KeyOf(m, desc.Digest)
			first := keepers(key, members)[0]
			k := keeper{first.Name, first.Since}
			p.mu.Lock()
			said := p.told[key]
			known := said.keeper == k && time.Since(said.at) < tellAgain
			p.mu.Unlock()
			if !known && !all[key] {
				news[k] = append(news[k], key)
			}
			all[key] = true
		}
	}
	for k, keys := range news {
		for some := range slices.Chunk(keys, maxKeys) {
			p.tellHave(ctx, k, some)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range p.told {
		if !all[key] {
			delete(p.told, key)
		}
	}
}

func (p *Peers) tellHave(ctx context.Context, k keeper, keys []Key) {
	q := question{Verb: have, Keys: raw(keys), Port: p.cfg.Port}
	if k.name == p.cfg.Name {
		p.hear(p.cfg.Name, q)
	} else if _, err := p.tell(ctx, k.name, q); err != nil {
		p.cfg.Log.Debug("a node is not told which layers are here", "node", k.name, "err", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range keys {
		p.told[key] = notice{k, time.Now()}
	}
}

// layersOf are the layers of a manifest that are worth asking for.
func layersOf(manifest []byte) (out []ocispec.Descriptor) {
	var m ocispec.Manifest
	if json.Unmarshal(manifest, &m) != nil {
		return nil
	}
	for _, l := range m.Layers {
		if l.Size >= Least {
			out = append(out, l)
		}
	}
	return out
}
