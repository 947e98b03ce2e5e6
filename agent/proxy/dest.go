package proxy

import (
	"fmt"
	"net/netip"
	"strings"

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

// index is one of the two ways in which a Service is found: by its addresses, or
// by its node ports.
type index struct {
	name   string   // before the names of sets and chains
	key    nft.Key  // of an elem
	own    *nft.Set // elem : chain
	plain  *nft.Set // elems with a class
	target *nft.Set // elem . number : address . port
	of     map[class]*nft.Set
	masked *nft.Set // elems whose client's address is replaced; nil: all
}

func (x *index) sets() []*nft.Set {
	all := []*nft.Set{x.own, x.plain, x.target}
	if x.masked != nil {
		all = append(all, x.masked)
	}
	for _, c := range classes {
		all = append(all, x.of[c])
	}
	return all
}

// plainChain is where all elems with a class go first.
func (x *index) plainChain() string { return x.name + "plain" }

// chain is where the class's elems go.
func (x *index) chain(c class) string {
	switch c {
	case classRefuse:
		return chainReject
	case classDrop:
		return chainDrop
	}
	return x.name + c.String()
}

// addClasses adds the chains of an index's classes and the one that leads to them.
func (t *table) addClasses(o nft.Objects, x *index) {
	plain := x.plainChain()
	if x.masked != nil {
		o.AddRule(plain, nft.In(x.key, x.masked), nft.Mark(markMasquerade))
	} else {
		o.AddRule(plain, nft.Mark(markMasquerade))
	}
	for _, c := range classes {
		o.AddRule(plain, nft.In(x.key, x.of[c]), nft.Goto(x.chain(c)))
		if c <= 0 {
			continue
		}
		t.addDraw(o, x, x.chain(c), c)
		if c > classExact {
			for range draws - 1 {
				t.addDraw(o, x, x.chain(c), c)
			}
			t.addDraw(o, x, x.chain(c), c/2)
		}
		t.addDraw(o, x, x.chain(c), 1) // a packet may meet a change half-way, here and in plain
	}
	t.addDraw(o, x, plain, 1)
}

// addDraw takes a backend at random from the first n of an elem, if it has the
// one drawn.
func (t *table) addDraw(o nft.Objects, x *index, chain string, n class) {
	o.AddRule(chain, t.Family.DNAT(x.key.And(nft.Random(int(n))), x.target))
}

// add leads an elem to a dest.
func (t *table) add(o nft.Objects, e elem, d dest) {
	x, key := t.index(e), e.key()
	if d.chain != "" {
		o.Add(x.own, key, nft.Data(d.chain))
		return
	}
	o.Add(x.plain, key, nil)
	o.Add(x.of[d.class()], key, nil)
	if d.masquerade && x.masked != nil {
		o.Add(x.masked, key, nil)
	}
	for i, to := range d.backends[:min(len(d.backends), int(classMost))] {
		o.Add(x.target, e.key().Number(uint32(i)), nft.Target(to))
	}
}

func (t *table) index(e elem) *index {
	if e.addr.IsValid() {
		return &t.addresses
	}
	return &t.nodePorts
}
