package topology

import (
	"maps"
	"slices"
)

// Hint is a set of nodes that could give a container a resource; the empty one is that any
// could. Preferred: fewer could not.
type Hint struct {
	Nodes     Mask
	Preferred bool
}

// Hints are those for each resource that a container asks for. A resource that is not there
// has no preference; one with an empty list can be had nowhere.
type Hints map[string][]Hint

// Policy tells which containers are let run, by the nodes that suit them.
type Policy string

// The policies, by the kubelet's names.
const (
	None       Policy = "none"
	BestEffort Policy = "best-effort"
	Restricted Policy = "restricted"
	SingleNode Policy = "single-numa-node"
)

// chooser chooses among sets of nodes.
type chooser struct {
	machine *Machine
	policy  Policy
	// closest has the nodes chosen that are nearest to each other, where as many suit.
	closest bool
}

// choose merges hints. It returns the nodes that suit all resources, the empty set for all,
// and whether the policy lets the container run.
func (c chooser) choose(all []Hints) (Mask, bool) {
	lists := c.lists(all)
	best, any := Hint{}, false
	for _, h := range merged(lists) {
		if !any || c.better(h, best, ideal(lists)) {
			best, any = h, true
		}
	}
	if best.Nodes == c.machine.NodeMask() {
		best.Nodes = 0
	}
	return best.Nodes, c.policy == BestEffort || best.Preferred
}

// lists are the hints of each resource in a fixed order; with the policy of the single node
// only those on one.
func (c chooser) lists(all []Hints) (out [][]Hint) {
	for _, hints := range all {
		for _, resource := range slices.Sorted(maps.Keys(hints)) {
			list := hints[resource]
			if c.policy == SingleNode {
				list = slices.DeleteFunc(slices.Clone(list), func(h Hint) bool {
					return !h.Preferred || h.Nodes.Count() > 1
				})
			}
			out = append(out, list)
		}
	}
	return out
}

// merged are the sets of nodes that one hint of each list leaves. A set is preferred if all
// these hints are, and name the same nodes.
func merged(lists [][]Hint) []Hint {
	states := map[Hint]bool{{Preferred: true}: true}
	for _, list := range lists {
		next := map[Hint]bool{}
		for s := range states {
			for _, h := range list {
				if m, ok := both(s, h); ok {
					next[m] = true
				}
			}
		}
		states = next
	}
	return slices.SortedFunc(maps.Keys(states), func(a, b Hint) int {
		if a.Nodes.narrower(b.Nodes) {
			return -1
		}
		return 1
	})
}

func both(a, b Hint) (Hint, bool) {
	out := Hint{Nodes: a.Nodes & b.Nodes, Preferred: a.Preferred && b.Preferred}
	switch {
	case a.Nodes == 0:
		out.Nodes = b.Nodes
	case b.Nodes == 0:
		out.Nodes = a.Nodes
	case a.Nodes != b.Nodes:
		out.Preferred = false
	}
	return out, out.Nodes != 0 || a.Nodes == 0 && b.Nodes == 0
}

// ideal is how many nodes the resource needs that needs the most.
func ideal(lists [][]Hint) (out int) {
	for _, list := range lists {
		least := 0
		for _, h := range list {
			if n := h.Nodes.Count(); n > 0 && (least == 0 || n < least) {
				least = n
			}
		}
		out = max(out, least)
	}
	return out
}

// better tells whether a suits more than b. Of two that are not preferred it is the one
// nearer to the ideal number of nodes, rather below than above it: what is on fewer nodes
// than a resource needs has the rest of it elsewhere.
func (c chooser) better(a, b Hint, ideal int) bool {
	if a.Preferred != b.Preferred {
		return a.Preferred
	}
	if !a.Preferred {
		if x, y := off(c.count(a.Nodes), ideal), off(c.count(b.Nodes), ideal); x != y {
			return x < y
		}
	}
	return c.nearer(a.Nodes, b.Nodes)
}

// off ranks a number of nodes: 0 is the ideal, then come those below it, then those above.
func off(n, ideal int) int {
	if n <= ideal {
		return ideal - n
	}
	return n
}

func (c chooser) count(nodes Mask) int {
	if nodes == 0 {
		return len(c.machine.Nodes)
	}
	return nodes.Count()
}

// nearer tells whether the nodes of a are fewer than those of b, or as many and nearer to
// each other. The empty set is that of all nodes.
func (c chooser) nearer(a, b Mask) bool {
	if a == 0 || b == 0 {
		return a != 0
	}
	if c.closest && a.Count() == b.Count() {
		if x, y := c.machine.distance(a), c.machine.distance(b); x != y {
			return x < y
		}
	}
	return a.narrower(b)
}
