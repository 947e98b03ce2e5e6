package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/shoal-project/shoal/cni/nft"
)

// dest is where the flows to an elem go: to a chain of the Service's own, or,
// as nearly all do, to one of some backends. The latter takes no rule and no
// verdict, only elements of sets and data: the kernel looks through a whole table
// whenever a rule or a verdict comes to it, and an element costs the same among
// ten thousand Services as among ten.
type dest struct {
	chain      string
	backends   []netip.AddrPort // each with the same chance; none: refused
	drop       bool             // without backends: dropped instead
	masquerade bool             // the client's address is replaced; always so for node ports
}

func (d dest) equal(o dest) bool {
	return d.chain == o.chain && d.drop == o.drop && d.masquerade == o.masquerade && slices.Equal(d.backends, o.backends)
}

func (d dest) String() string {
	switch {
	case d.chain != "":
		return "goto " + d.chain
	case len(d.backends) == 0 && d.drop:
		return "drop"
	case len(d.backends) == 0:
		return "refuse"
	}
	var b strings.Builder
	if d.masquerade {
		b.WriteString("masquerade later ")
	}
	b.WriteString("dnat to one of")
	for _, t := range d.backends {
		fmt.Fprintf(&b, " %s", t)
	}
	return b.String()
}

// class is what is done with the flows of a dest without a chain: among how many
// numbers one is drawn, which is a constant of a rule. A class has one set of
// the elems that are of it. (One map from elem to class would be shorter, but nft
// 1.0.6 aborts when it lists a lookup by the result of another.)
type class int

const (
	classRefuse class = 0
	classDrop   class = -1
	// classExact is the largest class for one number of backends only. The ones
	// above it double: there a number without a backend is drawn again.
	classExact class = 8
	classMost  class = 1 << 16
)

// draws is how often a number is drawn at random before one from the lower half
// is, where there are always backends. Those have a chance up to 1.6 % higher by it.
const draws = 6

// classes are all classes, those of most Services first.
var classes = func() []class {
	var all []class
	for c := class(1); c <= classExact; c++ {
		all = append(all, c)
	}
	for c := 2 * classExact; c <= classMost; c *= 2 {
		all = append(all, c)
	}
	return append(all, classRefuse, classDrop)
}()

func (d dest) class() class {
	n := class(len(d.backends))
	switch {
	case n == 0 && d.drop:
		return classDrop
	case n <= classExact:
		return n
	}
	for c := 2 * classExact; ; c *= 2 {
		if n <= c || c == classMost {
			return c
		}
	}
}

func (c class) String() string {
	switch c {
	case classRefuse:
		return "refuse"
	case classDrop:
		return "elsewhere"
	}
	return fmt.Sprintf("pick-%d", int(c))
}

// family is one of the two kinds of elems: addresses, and node ports.
type family struct {
	name   string        // before the names of sets and chains
	key    []expr.Any    // loads an elem's key
	parts  int           // of the key
	own    *nftables.Set // elem : chain
	plain  *nftables.Set // elems with a class
	target *nftables.Set // elem . number : address . port
	of     map[class]*nftables.Set
	masked *nftables.Set // elems whose client's address is replaced; nil: all
}

func (f *family) sets() []*nftables.Set {
	all := []*nftables.Set{f.own, f.plain, f.target}
	if f.masked != nil {
		all = append(all, f.masked)
	}
	for _, c := range classes {
		all = append(all, f.of[c])
	}
	return all
}

// chain is where the class's elems go.
func (f *family) chain(c class) string {
	switch c {
	case classRefuse:
		return chainReject
	case classDrop:
		return chainDrop
	}
	return f.name + c.String()
}

// addClasses fills the chains of a family's classes and the one that leads to them.
func (k *kernel) addClasses(f *family) {
	plain := f.name + "plain"
	if f.masked != nil {
		k.rule(plain, f.key, nft.In(f.masked, false), nft.Mark(markMasquerade))
	} else {
		k.rule(plain, nft.Mark(markMasquerade))
	}
	for _, c := range classes {
		k.rule(plain, f.key, nft.In(f.of[c], false), nft.Goto(f.chain(c)))
		if c <= 0 {
			continue
		}
		k.draw(f, f.chain(c), c)
		if c > classExact {
			for range draws - 1 {
				k.draw(f, f.chain(c), c)
			}
			k.draw(f, f.chain(c), c/2)
		}
	}
	// A packet may meet a change half-way, here and in a class.
	for _, name := range append(f.picks(), plain) {
		k.draw(f, name, 1)
	}
}

// draw takes a backend at random from the first n of an elem, if it has the one
// drawn.
func (k *kernel) draw(f *family, chain string, n class) {
	k.rule(chain, f.key, nft.AndRandom(f.parts, int(n)), nft.Target(f.target), nft.DNAT())
}

// picks names the chains that choose a backend.
func (f *family) picks() []string {
	var names []string
	for _, c := range classes {
		if c > 0 {
			names = append(names, f.chain(c))
		}
	}
	return names
}

// slot is the key of one backend of an elem.
type slot struct {
	elem
	index uint32
}

// route is an elem with its class.
type route struct {
	elem
	class
	masquerade bool
}

// changeElem adds to a change what leads an elem from one dest to another; nil
// is none.
func (c *change) changeElem(e elem, had, want *dest) {
	var none dest
	h, w := had, want
	if h == nil {
		h = &none
	}
	if w == nil {
		w = &none
	}
	if h.chain != w.chain {
		if h.chain != "" {
			c.delElems = append(c.delElems, e)
		}
		if w.chain != "" {
			c.addElems[e] = w.chain
		}
	}
	hadRoute, wantsRoute := had != nil && had.chain == "", want != nil && want.chain == ""
	old, now := route{e, h.class(), h.masquerade}, route{e, w.class(), w.masquerade}
	if hadRoute && (!wantsRoute || old != now) {
		c.delRoutes = append(c.delRoutes, old)
	}
	if wantsRoute && (!hadRoute || old != now) {
		c.addRoutes = append(c.addRoutes, now)
	}
	for i := range min(max(len(h.backends), len(w.backends)), int(classMost)) {
		s := slot{e, uint32(i)}
		old, now := at(h.backends, i), at(w.backends, i)
		if old == now {
			continue
		}
		if old.IsValid() {
			c.delTargets = append(c.delTargets, s)
		}
		if now.IsValid() {
			c.addTargets[s] = now
		}
	}
}

func at(list []netip.AddrPort, i int) netip.AddrPort {
	if i < len(list) {
		return list[i]
	}
	return netip.AddrPort{}
}
