package proxy

import (
	"cmp"
	"maps"
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
	// rivals want an elem that another has: the better claim has it, of equal
	// ones the first by name.
	rivals map[elem]map[service.Key]bool
	pairs  map[netip.Addr]int
	own    map[netip.AddrPort]bool
	gossip map[netip.AddrPort]bool
}

func newState() *state {
	return &state{owners: map[elem]service.Key{}, rivals: map[elem]map[service.Key]bool{}, pairs: map[netip.Addr]int{}}
}

// rendered is a Service before and after a change.
type rendered struct{ had, want objects }

// affected renders the Services that differ, and those that want what one of them
// had or wants: who has it must not depend on who came first.
func (r *renderer) affected(st state, next *service.Tables) map[service.Key]rendered {
	all := map[service.Key]rendered{}
	look := func(k service.Key) {
		if _, known := all[k]; known {
			return
		}
		one := rendered{newObjects(), newObjects()}
		r.render(st.tables.Get(k), one.had)
		r.render(next.Get(k), one.want)
		all[k] = one
	}
	changed := service.Changed(st.tables, next)
	for _, k := range changed {
		look(k)
	}
	for _, k := range changed {
		for _, elems := range []map[elem]dest{all[k].had.elems, all[k].want.elems} {
			for e := range elems {
				if owner, held := st.owners[e]; held {
					look(owner)
				}
				for rival := range st.rivals[e] {
					look(rival)
				}
			}
		}
	}
	return all
}

// delta returns the change from st to next, with the state after it. Its cost
// is that of the Services that differ and of their rivals.
func (r *renderer) delta(st state, next *service.Tables) (*change, state) {
	all := r.affected(st, next)
	keys := slices.SortedFunc(maps.Keys(all), compareKeys)
	after := state{tables: next, owners: st.owners, rivals: st.rivals, pairs: st.pairs}
	had, want := newObjects(), newObjects()
	wanted := map[service.Key][]elem{} // before the change
	for _, k := range keys {
		one := all[k].had
		wanted[k] = slices.Collect(maps.Keys(one.elems))
		for e := range one.elems {
			if st.owners[e] != k {
				delete(one.elems, e) // a rival's
			}
		}
		had.merge(one)
	}
	owners, lost := contest(keys, all, had, st, next)
	for _, k := range keys {
		want.merge(all[k].want)
	}
	c := diff(had, want)
	c.delPairs, c.addPairs = pairChanges(st.pairs, had.pairs, want.pairs)
	c.after = func() {
		for e := range had.elems {
			delete(st.owners, e)
		}
		maps.Copy(st.owners, owners)
		for k, elems := range wanted {
			for _, e := range elems {
				st.forgetRival(e, k)
			}
		}
		for e, list := range lost {
			for _, k := range list {
				st.addRival(e, k)
			}
		}
		st.addPairs(had.pairs, want.pairs)
	}
	return c, after
}

// contest tells who of the keys gets which elem, and takes from the others what
// they do not get. had is what all of them had.
func contest(keys []service.Key, all map[service.Key]rendered, had objects, st state, next *service.Tables) (owners map[elem]service.Key, lost map[elem][]service.Key) {
	owners, lost = map[elem]service.Key{}, map[elem][]service.Key{}
	for c := range claims {
		for _, k := range keys {
			for e := range all[k].want.elems {
				if claimOf(next.Get(k), e) != c {
					continue
				}
				_, taken := owners[e]
				other, held := st.owners[e]
				_, released := had.elems[e]
				if taken || held && other != k && !released {
					lost[e] = append(lost[e], k)
					delete(all[k].want.elems, e)
					continue
				}
				owners[e] = k
			}
		}
	}
	return owners, lost
}

func (st *state) forgetRival(e elem, k service.Key) {
	if rivals, ok := st.rivals[e]; ok {
		if delete(rivals, k); len(rivals) == 0 {
			delete(st.rivals, e)
		}
	}
}

func (st *state) addRival(e elem, k service.Key) {
	if st.rivals[e] == nil {
		st.rivals[e] = map[service.Key]bool{}
	}
	st.rivals[e][k] = true
}

func (st *state) addPairs(had, want map[netip.Addr]int) {
	for a, n := range had {
		st.pairs[a] -= n
	}
	for a, n := range want {
		st.pairs[a] += n
	}
	for a := range had {
		if st.pairs[a] == 0 {
			delete(st.pairs, a)
		}
	}
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
