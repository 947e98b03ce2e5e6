package nodeipam

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// blocks knows which blocks of the cluster's range are held, and by which
// nodes. It is kept up to date holder by holder, so that a node costs the same
// in a cluster of any size.
type blocks struct {
	cluster netip.Prefix
	bits    int
	// taken counts the holders of a block, by the block's number.
	taken map[uint32]int
	// low is the lowest number that may be free.
	low     uint32
	holders map[string]holder // by node
}

type holder struct {
	uid   types.UID
	holds []netip.Prefix
}

func newBlocks(cluster netip.Prefix, bits int) *blocks {
	b := &blocks{cluster: cluster.Masked(), bits: bits, taken: map[uint32]int{}, holders: map[string]holder{}}
	if cluster.Addr().Is4() {
		b.low, _ = b.touched(b.cluster)
	}
	return b
}

// touched are the numbers of the first and the last block of the range that p
// overlaps; p overlaps the range.
func (b *blocks) touched(p netip.Prefix) (first, last uint32) {
	if p.Bits() < b.cluster.Bits() {
		p = b.cluster
	}
	first = number(p.Masked().Addr()) >> (32 - b.bits)
	last = first
	if p.Bits() < b.bits {
		last += 1<<(b.bits-p.Bits()) - 1
	}
	return first, last
}

// hold notes what a node holds, in place of what it held before.
func (b *blocks) hold(node string, uid types.UID, holds []netip.Prefix) {
	if have, ok := b.holders[node]; ok && have.uid == uid && slices.Equal(have.holds, holds) {
		return
	}
	b.free(node)
	if len(holds) == 0 {
		return
	}
	b.holders[node] = holder{uid, holds}
	b.count(holds, 1)
}

func (b *blocks) count(holds []netip.Prefix, by int) {
	for _, p := range holds {
		if !p.Addr().Is4() || !p.Overlaps(b.cluster) {
			continue
		}
		first, last := b.touched(p)
		for n := first; ; n++ {
			if b.taken[n] += by; b.taken[n] <= 0 {
				delete(b.taken, n)
				b.low = min(b.low, n)
			}
			if n == last {
				break
			}
		}
	}
}

// freeOf forgets what a node holds if it is still the one with that UID.
func (b *blocks) freeOf(node string, uid types.UID) {
	if b.holders[node].uid == uid {
		b.free(node)
	}
}

// free forgets what a node holds.
func (b *blocks) free(node string) {
	if have, ok := b.holders[node]; ok {
		delete(b.holders, node)
		b.count(have.holds, -1)
	}
}

// give returns the block that the node holds, else the lowest that is free,
// which it holds from now on. It fails when the range is full, and when it has
// no blocks of that size.
func (b *blocks) give(node string, uid types.UID) (netip.Prefix, error) {
	if have, ok := b.holders[node]; ok && have.uid == uid {
		return have.holds[0], nil
	}
	if !b.cluster.Addr().Is4() || b.bits < b.cluster.Bits() {
		return netip.Prefix{}, fmt.Errorf("no IPv4 blocks of /%d in %s", b.bits, b.cluster)
	}
	_, last := b.touched(b.cluster)
	for b.taken[b.low] > 0 {
		if b.low == last {
			return netip.Prefix{}, fmt.Errorf("%s has no free /%d left", b.cluster, b.bits)
		}
		b.low++
	}
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], b.low<<(32-b.bits))
	block := netip.PrefixFrom(netip.AddrFrom4(addr), b.bits)
	b.hold(node, uid, []netip.Prefix{block})
	return block, nil
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}
