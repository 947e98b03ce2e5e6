package proxy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/cni/nft"
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
	second *state // of the other family; nil: its table is not known
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
		one := rendered{r.newObjects(), r.newObjects()}
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

// change is what one transaction does.
type change struct {
	nft.Change
	after func() // brings the state up to date once the kernel has taken the change
}

// delta returns the change from st to next, with the state after it. Its cost
// is that of the Services that differ and of their rivals.
func (r *renderer) delta(st state, next *service.Tables) (*change, state) {
	all := r.affected(st, next)
	keys := slices.SortedFunc(maps.Keys(all), compareKeys)
	after := state{tables: next, owners: st.owners, rivals: st.rivals, pairs: st.pairs}
	had, want := r.newObjects(), r.newObjects()
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
	r.lower(had)
	r.lower(want)
	c := &change{Change: nft.Diff(had.Objects, want.Objects)}
	r.changePairs(c, st.pairs, had.pairs, want.pairs)
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
func contest(keys []service.Key, all map[service.Key]rendered, had objects, st state,
	next *service.Tables) (owners map[elem]service.Key, lost map[elem][]service.Key) {
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
	o.Merge(p.Objects)
	maps.Copy(o.elems, p.elems)
	for k, v := range p.pairs {
		o.pairs[k] += v
	}
}

// lower tells elems and dests in nftables' terms. Pairs, which count across
// Services, are not among them.
func (t *table) lower(o objects) {
	for e, d := range o.elems {
		t.add(o.Objects, e, d)
	}
}

// changePairs adds the pairs that come, and those that nobody needs any more.
func (t *table) changePairs(c *change, now, had, want map[netip.Addr]int) {
	for a, n := range had {
		if now[a] == n && want[a] == 0 {
			c.Del.Add(t.hairpin, pairOf(a), nil)
		}
	}
	for a := range want {
		if now[a] == 0 {
			c.Add.Add(t.hairpin, pairOf(a), nil)
		}
	}
}

func pairOf(a netip.Addr) nft.Data { return nft.Data{}.Addr(a).Addr(a) }
