package topology

import (
	"iter"
	"math/bits"
	"strconv"
	"strings"
)

// MaxNode is the greatest number of a NUMA node that a Mask can hold.
const MaxNode = 63

// Mask is a set of NUMA nodes; the empty one stands for "wherever".
type Mask uint64

// MaskOf is the set of the nodes.
func MaskOf(nodes ...int) (m Mask) {
	for _, n := range nodes {
		m |= 1 << n
	}
	return m
}

// Has tells whether the node is in the set.
func (m Mask) Has(node int) bool { return node >= 0 && node <= MaxNode && m&(1<<node) != 0 }

// Count is how many nodes the set has.
func (m Mask) Count() int { return bits.OnesCount64(uint64(m)) }

// Nodes are those of the set, in order.
func (m Mask) Nodes() []int {
	out := make([]int, 0, m.Count())
	for rest := m; rest != 0; rest &= rest - 1 {
		out = append(out, bits.TrailingZeros64(uint64(rest)))
	}
	return out
}

// String is the set as the kernel writes lists, as in 0,1.
func (m Mask) String() string {
	names := make([]string, 0, m.Count())
	for _, n := range m.Nodes() {
		names = append(names, strconv.Itoa(n))
	}
	return strings.Join(names, ",")
}

// Subsets are all sets of nodes of m that are not empty, the smaller numbers first.
func (m Mask) Subsets() iter.Seq[Mask] {
	return func(yield func(Mask) bool) {
		for s := m & -m; s != 0; s = (s - m) & m {
			if !yield(s) {
				return
			}
		}
	}
}

// narrower tells whether m has fewer nodes than o, or as many with smaller numbers.
func (m Mask) narrower(o Mask) bool {
	if a, b := m.Count(), o.Count(); a != b {
		return a < b
	}
	return m < o
}
