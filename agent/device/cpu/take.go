package cpu

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/shoal-project/shoal/agent/device/topology"
)

// taker chooses CPUs.
type taker struct {
	machine *topology.Machine
	options Options
}

// level is a part of the machine that CPUs share, by the part of a CPU.
type level func(topology.CPU) int

// The parts of a machine.
func bySocket(c topology.CPU) int { return c.Socket }
func byNode(c topology.CPU) int   { return c.Node }
func byCache(c topology.CPU) int  { return c.Cache }
func byCore(c topology.CPU) int   { return c.Core }

// take chooses n of the free CPUs; an error is that there are fewer.
func (t taker) take(free cpuset.CPUSet, n int) (cpuset.CPUSet, error) {
	if free.Size() < n {
		return cpuset.CPUSet{}, fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d",
			n, free.Size())
	}
	if t.options.AcrossNodes {
		if out, ok := t.spread(free, n); ok {
			return out, nil
		}
	}
	return t.pack(free, n, t.levels()), nil
}

// levels are the parts of the machine, the largest first.
func (t taker) levels() []level {
	out := []level{bySocket, byNode}
	if t.machine.Sockets(t.machine.NodeMask()) > len(t.machine.Nodes) {
		out = []level{byNode, bySocket} // a node has several sockets
	}
	if t.options.UncoreCache {
		out = append(out, byCache)
	}
	return append(out, byCore)
}

// part is one of the parts of a level: its free CPUs, and whether all of it are free.
type part struct {
	key   int
	free  cpuset.CPUSet
	whole bool
}

// parts are those that have free CPUs, in order.
func (t taker) parts(of level, free cpuset.CPUSet) []part {
	all, members := map[int]int{}, map[int][]int{}
	for n, c := range t.machine.CPUs {
		all[of(c)]++
		if free.Contains(n) {
			members[of(c)] = append(members[of(c)], n)
		}
	}
	var out []part
	for _, key := range slices.Sorted(maps.Keys(members)) {
		out = append(out, part{key, cpuset.New(members[key]...), len(members[key]) == all[key]})
	}
	return out
}

// pack chooses n of the free CPUs, of which there are as many: whole parts of the first level,
// then of the part on which the rest fits with the least left over by the levels below it. If
// it fits on none, the parts with the most free ones are used up first.
func (t taker) pack(free cpuset.CPUSet, n int, levels []level) cpuset.CPUSet {
	if n == 0 {
		return cpuset.New()
	}
	if len(levels) == 0 {
		return cpuset.New(free.List()[:n]...)
	}
	if len(levels) == 1 && t.options.AcrossCores {
		return t.oneEach(free, n)
	}
	out := cpuset.New()
	for _, p := range t.parts(levels[0], free) {
		if size := p.free.Size(); p.whole && size <= n {
			out, free, n = out.Union(p.free), free.Difference(p.free), n-size
		}
	}
	for n > 0 {
		p := bestFit(t.parts(levels[0], free), n)
		some := min(n, p.free.Size())
		out = out.Union(t.pack(p.free, some, levels[1:]))
		free, n = free.Difference(p.free), n-some
	}
	return out
}

// bestFit is the smallest part that has n free CPUs, or else the largest.
func bestFit(parts []part, n int) part {
	return slices.MinFunc(parts, func(a, b part) int {
		x, y := a.free.Size(), b.free.Size()
		switch {
		case x >= n && y >= n:
			return cmp.Or(cmp.Compare(x, y), cmp.Compare(a.key, b.key))
		case x < n && y < n:
			return cmp.Or(cmp.Compare(y, x), cmp.Compare(a.key, b.key))
		}
		return cmp.Compare(y, x)
	})
}

// oneEach chooses a CPU of each core, then a second one of each.
func (t taker) oneEach(free cpuset.CPUSet, n int) cpuset.CPUSet {
	out := cpuset.New()
	for out.Size() < n {
		for _, p := range t.parts(byCore, free) {
			if out.Size() < n {
				one := cpuset.New(p.free.List()[0])
				out, free = out.Union(one), free.Difference(one)
			}
		}
	}
	return out
}

// spread chooses n of the free CPUs evenly of as few NUMA nodes as have them; false where one
// has them all, or an even share of them can be had nowhere. Of several such sets of nodes it
// is the one after which the free CPUs are spread the most evenly over all nodes.
func (t taker) spread(free cpuset.CPUSet, n int) (cpuset.CPUSet, bool) {
	on := map[int]cpuset.CPUSet{}
	for _, p := range t.parts(byNode, free) {
		if p.free.Size() >= n {
			return cpuset.CPUSet{}, false
		}
		on[p.key] = p.free
	}
	best, shares, least := math.Inf(1), map[int]int(nil), len(on)+1
	for nodes := range topology.MaskOf(slices.Collect(maps.Keys(on))...).Subsets() {
		k := nodes.Count()
		if k < 2 || k > least {
			continue
		}
		s, ok := t.share(on, nodes.Nodes(), n)
		if !ok {
			continue
		}
		if u := unevenness(on, s); k < least || u < best {
			best, shares, least = u, s, k
		}
	}
	if shares == nil {
		return cpuset.CPUSet{}, false
	}
	out := cpuset.New()
	for node, some := range shares {
		out = out.Union(t.pack(on[node], some, t.levels()))
	}
	return out, true
}

// share divides n CPUs evenly among nodes, by whole cores where only these are given. What
// cannot be divided comes from the nodes that have the most left.
func (t taker) share(on map[int]cpuset.CPUSet, nodes []int, n int) (map[int]int, bool) {
	unit := 1
	if t.options.FullCores {
		unit = t.machine.ThreadsPerCore()
	}
	each := n / len(nodes) / unit * unit
	out := map[int]int{}
	for _, node := range nodes {
		if on[node].Size() < each {
			return nil, false
		}
		out[node] = each
	}
	left := func(node int) int { return on[node].Size() - out[node] }
	for rest := n - each*len(nodes); rest > 0; rest -= unit {
		most := slices.MaxFunc(nodes, func(a, b int) int {
			return cmp.Or(cmp.Compare(left(a), left(b)), cmp.Compare(out[b], out[a]), cmp.Compare(b, a))
		})
		if left(most) < unit {
			return nil, false
		}
		out[most] += unit
	}
	return out, true
}

// unevenness is the standard deviation of what is left on the nodes.
func unevenness(on map[int]cpuset.CPUSet, shares map[int]int) float64 {
	var sum, squares float64
	for _, node := range slices.Sorted(maps.Keys(on)) {
		left := float64(on[node].Size() - shares[node])
		sum, squares = sum+left, squares+left*left
	}
	n := float64(len(on))
	return math.Sqrt(max(0, squares/n-sum/n*sum/n))
}

// fullCores are the free CPUs of cores of which all CPUs are free.
func (t taker) fullCores(free cpuset.CPUSet) cpuset.CPUSet {
	out := cpuset.New()
	for _, p := range t.parts(byCore, free) {
		if p.whole {
			out = out.Union(p.free)
		}
	}
	return out
}
