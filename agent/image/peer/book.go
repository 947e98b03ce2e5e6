package peer

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Limits of a Book. They hold for what one member can have another keep, too.
const (
	maxLayers  = 1 << 16
	maxOfNode  = 1 << 13 // entries of one node
	maxSources = 1 << 11 // of one layer
	maxWhole   = 64      // sources of one layer that have all of it

	// maxTakers is how many get a layer from one source at one time, where there are others:
	// each gets a third of it there, so that a node sends little more than it receives.
	maxTakers = 4
	// maxGiven is how many sources one node is given.
	maxGiven = 3
	// silence is how long a node may be silent while it gets a layer; it says that it is
	// still at it each stillEvery.
	silence    = time.Minute
	stillEvery = 20 * time.Second
	// believed is how long a node's word counts that it has a layer, unless it says so again.
	believed = 24 * time.Hour
	// leadEvery is how often another node is sent to the registry because nothing comes.
	leadEvery = 15 * time.Second
	// maxLeaders is how many are at the registry at one time because little comes: where its
	// line is the slow one, more of them make it slower.
	maxLeaders = 2
)

// Source is a node that gives layers, at this port of its address.
type Source struct {
	Node string `json:"node"`
	Port uint16 `json:"port"`
}

// Given is a source that a node is sent to.
type Given struct {
	Source
	Whole bool `json:"whole,omitempty"` // it has all of the layer, as it said
}

// Book knows which nodes have the layers that it is asked for, or are getting them. Its
// methods are given the time, and whether a node lives.
type Book struct {
	mu     sync.Mutex
	layers map[Key]*layer
	ofNode map[string]int
}

// layer has its sources in an order: each gets its bytes only from those before it.
type layer struct {
	sources []*source
	led     time.Time // when a node was sent to the registry
}

type source struct {
	Source
	whole  bool
	seen   time.Time
	from   []*source
	takers int
	// doubter says that it does not get what is here; a second one's word removes the source.
	doubter string
}

// NewBook returns an empty book.
func NewBook() *Book { return &Book{layers: map[Key]*layer{}, ofNode: map[string]int{}} }

// Wish is what a node that asks for a layer knows.
type Wish struct {
	Source
	// Lost are nodes that do not give the layer, Busy those that cannot now.
	Lost, Busy []string
	// Stalled: nothing comes from those it was given, though they live.
	Stalled bool
	// Slow: little comes from them.
	Slow bool
}

// Find says where a node gets a layer, and that it is getting it: from nodes, best first,
// or, when there are none, from the registry.
func (b *Book) Find(key Key, w Wish, now time.Time, alive func(node string) bool) []Given {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.layers[key]
	if l == nil {
		if len(b.layers) >= maxLayers {
			return nil
		}
		l = &layer{}
		b.layers[key] = l
	}
	b.tidy(l, w, now, alive)
	me := l.find(w.Node)
	if me == nil {
		if me = b.enter(l, w.Source); me == nil {
			b.drop(key, l)
			return nil
		}
	}
	me.Source, me.whole, me.seen, me.doubter = w.Source, false, now, ""
	me.leave()
	list := l.before(me, w)
	lead := w.Stalled || w.Slow && l.atRegistry(me) < maxLeaders
	if len(list) == 0 || lead && now.Sub(l.led) >= leadEvery {
		l.led = now
		l.toFront(me)
		return nil
	}
	var out []Given
	for _, s := range list {
		s.takers++
		me.from = append(me.from, s)
		out = append(out, Given{s.Source, s.whole})
	}
	return out
}

// atRegistry is how many nodes get the layer there, beside one.
func (l *layer) atRegistry(me *source) (n int) {
	for _, s := range l.sources {
		n += number(s != me && !s.whole && len(s.from) == 0)
	}
	return n
}

// before are the sources for a node: whole ones first, those that few get from.
func (l *layer) before(me *source, w Wish) []*source {
	var list []*source
	mine, onMe := slices.Index(l.sources, me), l.dependents(me)
	for i, s := range l.sources {
		if (s.whole || i < mine) && !onMe[s.Node] && !slices.Contains(w.Lost, s.Node) && !slices.Contains(w.Busy, s.Node) {
			list = append(list, s)
		}
	}
	slices.SortStableFunc(list, func(a, b *source) int {
		return cmp.Or(full(a)-full(b), doubted(a)-doubted(b), partly(a)-partly(b), a.takers-b.takers)
	})
	return list[:min(len(list), maxGiven)]
}

// dependents are the nodes that get from one, by others too, and that one itself. There may
// be some that stand before it: it had all of the layer once, or was thought to be gone.
func (l *layer) dependents(me *source) map[string]bool {
	on, now := map[string]bool{me.Node: true}, map[string]*source{}
	for _, s := range l.sources {
		now[s.Node] = s
	}
	var is func(*source) bool
	is = func(s *source) bool {
		s = cmp.Or(now[s.Node], s)
		yes, known := on[s.Node]
		if !known {
			on[s.Node] = false // of a circle that is not me's
			yes = slices.ContainsFunc(s.from, is)
			on[s.Node] = yes
		}
		return yes
	}
	for _, s := range l.sources {
		is(s)
	}
	return on
}

func full(s *source) int { return number(s.takers >= maxTakers) }

func partly(s *source) int { return number(!s.whole) }

func doubted(s *source) int { return number(s.doubter != "") }

func number(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// Still says that a node is still getting layers.
func (b *Book) Still(node string, keys []Key, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range keys {
		if l := b.layers[k]; l != nil {
			if s := l.find(node); s != nil {
				s.seen = now
			}
		}
	}
}

// Have says that a node has all of some layers.
func (b *Book) Have(who Source, keys []Key, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range keys {
		l := b.layers[k]
		if l == nil {
			if len(b.layers) >= maxLayers || b.ofNode[who.Node] >= maxOfNode {
				continue
			}
			l = &layer{}
			b.layers[k] = l
		}
		s := l.find(who.Node)
		if s == nil && l.wholes() < maxWhole {
			s = b.enter(l, who)
		}
		if s == nil {
			continue
		}
		s.leave()
		s.Source, s.whole, s.seen, s.doubter = who, true, now, ""
		if l.wholes() > maxWhole {
			b.remove(l, s)
		}
	}
}

// Gone says that a node has given up some layers, or lost them.
func (b *Book) Gone(node string, keys []Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range keys {
		if l := b.layers[k]; l != nil {
			if s := l.find(node); s != nil {
				b.remove(l, s)
			}
			b.drop(k, l)
		}
	}
}

// Sweep forgets nodes that do not live, those that fell silent, and what nobody has said again
// for a long time.
func (b *Book) Sweep(now time.Time, alive func(node string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, l := range b.layers {
		b.tidy(l, Wish{}, now, alive)
		b.drop(k, l)
	}
}

// tidy removes the sources that are gone, or of which too many say so.
func (b *Book) tidy(l *layer, w Wish, now time.Time, alive func(node string) bool) {
	for _, s := range slices.Clone(l.sources) {
		lost := slices.Contains(w.Lost, s.Node)
		bad := lost && s.doubter != "" && s.doubter != w.Node
		if lost {
			s.doubter = w.Node
		}
		most := silence
		if s.whole {
			most = believed
		}
		if bad || !alive(s.Node) || now.Sub(s.seen) > most {
			from := s.from
			b.remove(l, s)
			s.from = from // it may still get it there, whatever others say
		}
	}
}

func (b *Book) enter(l *layer, who Source) *source {
	if len(l.sources) >= maxSources || b.ofNode[who.Node] >= maxOfNode {
		return nil
	}
	s := &source{Source: who}
	l.sources = append(l.sources, s)
	b.ofNode[who.Node]++
	return s
}

func (b *Book) remove(l *layer, s *source) {
	s.leave()
	l.sources = slices.DeleteFunc(l.sources, func(x *source) bool { return x == s })
	if b.ofNode[s.Node]--; b.ofNode[s.Node] <= 0 {
		delete(b.ofNode, s.Node)
	}
}

func (b *Book) drop(k Key, l *layer) {
	if len(l.sources) == 0 {
		delete(b.layers, k)
	}
}

func (l *layer) find(node string) *source {
	for _, s := range l.sources {
		if s.Node == node {
			return s
		}
	}
	return nil
}

func (l *layer) wholes() (n int) {
	for _, s := range l.sources {
		n += number(s.whole)
	}
	return n
}

func (l *layer) toFront(me *source) {
	i := slices.Index(l.sources, me)
	copy(l.sources[1:i+1], l.sources[:i])
	l.sources[0] = me
}

// leave says that a source gets nothing from others any more.
func (s *source) leave() {
	for _, other := range s.from {
		other.takers--
	}
	s.from = nil
}
