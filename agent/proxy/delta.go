package proxy

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/shoal-project/shoal/agent/service"
)

// state is what the kernel holds, as far as it takes to change it: the objects
// themselves are rendered again from the tables.
type state struct {
	tables *service.Tables
	owners map[elem]service.Key // who has an elem
	pairs  map[netip.Addr]int
	clash  bool // two Services want one elem; the better claim has it, of equal ones the first by name
	own    map[netip.AddrPort]bool
}

func newState() *state {
	return &state{owners: map[elem]service.Key{}, pairs: map[netip.Addr]int{}}
}

// delta returns the change from st to next, with the state after it. Its cost
// is that of the Services that differ.
func (r *renderer) delta(st state, next *service.Tables) (*change, state) {
	keys := service.Changed(st.tables, next)
	if st.clash { // rare: somebody may take over an element
		keys = allKeys(st.tables, next)
	}
	slices.SortFunc(keys, compareKeys)
	after := state{tables: next, owners: st.owners, pairs: st.pairs}
	had, want := newObjects(), newObjects()
	for _, k := range keys {
		one := newObjects()
		r.render(st.tables.Get(k), one)
		for e := range one.elems {
			if st.owners[e] != k {
				delete(one.elems, e) // another's, by an earlier clash
			}
		}
		had.merge(one)
	}
	owners := map[elem]service.Key{}
	wanted := make([]objects, len(keys))
	for i, k := range keys {
		wanted[i] = newObjects()
		r.render(next.Get(k), wanted[i])
	}
	for c := range claims {
		for i, k := range keys {
			for e := range wanted[i].elems {
				if claimOf(next.Get(k), e) != c {
					continue
				}
				_, taken := owners[e]
				other, held := st.owners[e]
				_, released := had.elems[e]
				if taken || held && other != k && !released {
					after.clash = true
					delete(wanted[i].elems, e)
					continue
				}
				owners[e] = k
			}
		}
	}
	for _, one := range wanted {
		want.merge(one)
	}
	if after.clash && !st.clash { // who has it must not depend on who came first
		st.clash = true
		return r.delta(st, next)
	}
	c := diff(had, want)
	c.delPairs, c.addPairs = pairChanges(st.pairs, had.pairs, want.pairs)
	c.after = func() {
		for e := range had.elems {
			delete(st.owners, e)
		}
		for e, k := range owners {
			st.owners[e] = k
		}
		for a, n := range had.pairs {
			st.pairs[a] -= n
		}
		for a, n := range want.pairs {
			st.pairs[a] += n
		}
		for a := range had.pairs {
			if st.pairs[a] == 0 {
				delete(st.pairs, a)
			}
		}
	}
	return c, after
}

func allKeys(old, next *service.Tables) []service.Key {
	var keys []service.Key
	for k := range next.All() {
		keys = append(keys, k)
	}
	for k := range old.All() {
		if next.Get(k) == nil {
			keys = append(keys, k)
		}
	}
	return keys
}

func compareKeys(a, b service.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func (o objects) merge(p objects) {
	for k, v := range p.chains {
		o.chains[k] = v
	}
	for k, v := range p.sets {
		o.sets[k] = v
	}
	for k, v := range p.elems {
		o.elems[k] = v
	}
	for k, v := range p.pairs {
		o.pairs[k] += v
	}
}

// diff compares everything but the pairs, which count across Services.
func diff(had, want objects) *change {
	c := &change{
		addElems: map[elem]string{}, addTargets: map[slot]netip.AddrPort{},
		addChains: map[string]chain{}, addSets: map[string]time.Duration{},
	}
	for e, old := range had.elems {
		if now, ok := want.elems[e]; !ok {
			c.changeElem(e, &old, nil)
		} else if !old.equal(now) {
			c.changeElem(e, &old, &now)
		}
	}
	for e, now := range want.elems {
		if _, ok := had.elems[e]; !ok {
			c.changeElem(e, nil, &now)
		}
	}
	for name, ch := range want.chains {
		if old, ok := had.chains[name]; !ok || !old.equal(ch) {
			c.addChains[name] = ch
		}
	}
	for name := range had.chains {
		if _, ok := want.chains[name]; !ok {
			c.delChains = append(c.delChains, name)
		}
	}
	for name, timeout := range want.sets {
		if _, ok := had.sets[name]; !ok {
			c.addSets[name] = timeout
		}
	}
	for name := range had.sets {
		if _, ok := want.sets[name]; !ok {
			c.delSets = append(c.delSets, name)
		}
	}
	return c
}

func pairChanges(now, had, want map[netip.Addr]int) (del, add []netip.Addr) {
	for a, n := range had {
		if now[a] == n && want[a] == 0 {
			del = append(del, a)
		}
	}
	for a := range want {
		if now[a] == 0 {
			add = append(add, a)
		}
	}
	return del, add
}
