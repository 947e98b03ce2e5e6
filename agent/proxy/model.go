package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/shoal-project/shoal/cni/nft"
)

// objects is a part of the table, as values: destinations, pods that may reach
// themselves, and for what plain destinations cannot say chains and affinity sets.
type objects struct {
	nft.Objects
	elems map[elem]dest
	pairs map[netip.Addr]int // by how many backends
}

func (t *table) newObjects() objects {
	return objects{nft.NewObjects(t.Table), map[elem]dest{}, map[netip.Addr]int{}}
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

func (e elem) key() nft.Data {
	if e.addr.IsValid() {
		return nft.AddrProtoPort(e.addr, e.proto, e.port)
	}
	return nft.Data{}.Proto(e.proto).Port(e.port)
}

func compareElems(a, b elem) int {
	return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.proto, b.proto), cmp.Compare(a.port, b.port))
}

// String prints the objects for tests and support, sorted.
func (o objects) String() string {
	var b strings.Builder
	b.WriteString(o.Objects.String())
	for _, e := range slices.SortedFunc(maps.Keys(o.elems), compareElems) {
		fmt.Fprintf(&b, "%s : %s\n", e, o.elems[e])
	}
	for _, a := range slices.SortedFunc(maps.Keys(o.pairs), netip.Addr.Compare) {
		fmt.Fprintf(&b, "hairpin %s\n", a)
	}
	return b.String()
}
