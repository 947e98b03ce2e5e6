package cni

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

// index is what one process remembers of the links in a directory of addresses, so that an
// address for a pod does not take a look at each of them. It need not be right, as other
// processes change the directory too: what it says is there is looked at, what is not may
// be refused by the file system, and when it knows of no free address it is read anew.
type index struct {
	mu    sync.Mutex
	read  bool
	owner map[netip.Addr]string // reservations
	of    map[string][]netip.Addr
	pod   map[netip.Addr]string // who had an address last
	had   map[string][]netip.Addr
	// last is the address given out last, by the name of its link, which was written
	// lastWritten.
	last        map[string]netip.Addr
	lastWritten map[string]time.Time
}

// set remembers the links of now.
func (x *index) set(held map[netip.Addr]string, used map[string][]netip.Addr) {
	x.read, x.owner, x.of = true, make(map[netip.Addr]string, len(held)), make(map[string][]netip.Addr, len(held))
	x.pod, x.had = make(map[netip.Addr]string, len(used)), make(map[string][]netip.Addr, len(used))
	for a, owner := range held {
		x.reserved(a, owner)
	}
	for pod, addrs := range used {
		for _, a := range addrs {
			x.usedBy(a, pod)
		}
	}
}

func (x *index) reserved(a netip.Addr, owner string) {
	if x.read {
		x.freed(a)
		put(x.owner, x.of, a, owner)
	}
}

func (x *index) freed(a netip.Addr) { take(x.owner, x.of, a) }

func (x *index) usedBy(a netip.Addr, pod string) {
	if x.read {
		take(x.pod, x.had, a)
		put(x.pod, x.had, a, pod)
	}
}

// put and take keep a map and its reverse.
func put(of map[netip.Addr]string, addrs map[string][]netip.Addr, a netip.Addr, name string) {
	of[a] = name
	addrs[name] = append(addrs[name], a)
}

func take(of map[netip.Addr]string, addrs map[string][]netip.Addr, a netip.Addr) {
	name, ok := of[a]
	if !ok {
		return
	}
	delete(of, a)
	rest := slices.DeleteFunc(addrs[name], func(b netip.Addr) bool { return a == b })
	if addrs[name] = rest; len(rest) == 0 {
		delete(addrs, name)
	}
}
