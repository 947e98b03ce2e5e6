package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// objects is a part of the table, as values: destinations, pods that may reach
// themselves, and for what plain destinations cannot say chains and affinity sets.
type objects struct {
	chains map[string]chain
	sets   map[string]time.Duration // affinity sets and their timeouts
	elems  map[elem]dest
	pairs  map[netip.Addr]int // by how many backends
}

func newObjects() objects {
	return objects{
		chains: map[string]chain{}, sets: map[string]time.Duration{},
		elems: map[elem]dest{}, pairs: map[netip.Addr]int{},
	}
}

// elem is what a Service is known by; addr is invalid for a node port.
type elem struct {
	addr  netip.Addr
	proto uint8
	port  uint16
}

func (e elem) String() string {
	if !e.addr.IsValid() {
		return fmt.Sprintf("%d . %d", e.proto, e.port)
	}
	return fmt.Sprintf("%s . %d . %d", e.addr, e.proto, e.port)
}

func compareElems(a, b elem) int {
	return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.proto, b.proto), cmp.Compare(a.port, b.port))
}

// chain is a regular chain. Two with the same text are the same.
type chain []line

// line is one rule: its text, in nft's language, for comparison and for the
// reader, and how it is made.
type line struct {
	text string
	make func(*maker) []expr.Any
}

func (c chain) equal(d chain) bool {
	return slices.EqualFunc(c, d, func(a, b line) bool { return a.text == b.text })
}

// maker provides the sets that a rule needs.
type maker struct {
	conn  *nftables.Conn
	table *nftables.Table
	err   error // the first failure to encode
}

// fixed is a line without sets.
func fixed(text string, exprs []expr.Any) line {
	return line{text, func(*maker) []expr.Any { return exprs }}
}

// String prints the objects for tests and support, sorted.
func (o objects) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(o.sets)) {
		fmt.Fprintf(&b, "set %s timeout %s\n", name, o.sets[name])
	}
	for _, name := range slices.Sorted(maps.Keys(o.chains)) {
		fmt.Fprintf(&b, "chain %s\n", name)
		for _, l := range o.chains[name] {
			fmt.Fprintf(&b, "  %s\n", l.text)
		}
	}
	for _, e := range slices.SortedFunc(maps.Keys(o.elems), compareElems) {
		fmt.Fprintf(&b, "%s : %s\n", e, o.elems[e])
	}
	for _, a := range slices.SortedFunc(maps.Keys(o.pairs), netip.Addr.Compare) {
		fmt.Fprintf(&b, "hairpin %s\n", a)
	}
	return b.String()
}
