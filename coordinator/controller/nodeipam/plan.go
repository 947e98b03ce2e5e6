package nodeipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// maxNumberBits is how many bits a block's number may have: an IPv4 range of any
// size, an IPv6 range of /48 (config limits it to upstream's 16).
const maxNumberBits = 24

// blocks knows which blocks of one of the cluster's ranges are held, and by which
// nodes. It is kept up to date holder by holder, so that a node costs the same
// in a cluster of any size.
type blocks struct {
	cluster netip.Prefix
	bits    int
	// taken counts the holders of a block, by the block's number in the range.
	taken map[uint32]int
	// low is the lowest number that may be free.
	low     uint32
	holders map[string]holder // by node
}

type holder struct {
	uid   types.UID
	holds []netip.Prefix
	// left is when the Node was deleted, zero: it is there.
	left time.Time
}

// comeback is for how long a block waits for a Node that was deleted: an agent that still
// runs makes its Node again, and its pods run on with their addresses. Without it they are
// deleted after 40 seconds.
const comeback = time.Minute

func newBlocks(cluster netip.Prefix, bits int) *blocks {
	return &blocks{cluster: cluster.Masked(), bits: bits, taken: map[uint32]int{}, holders: map[string]holder{}}
}

// sound tells whether the range has blocks that can be counted.
func (b *blocks) sound() bool {
	n := b.bits - b.cluster.Bits()
	return n >= 0 && n <= maxNumberBits
}

// last is the number of the range's last block.
func (b *blocks) last() uint32 { return 1<<(b.bits-b.cluster.Bits()) - 1 }

// touched are the numbers of the first and the last block of the range that p
// overlaps; p overlaps the range.
func (b *blocks) touched(p netip.Prefix) (first, last uint32) {
	if p.Bits() <= b.cluster.Bits() {
		return 0, b.last()
	}
	first = b.number(p.Masked().Addr())
	last = first
	if p.Bits() < b.bits {
		last += 1<<(b.bits-p.Bits()) - 1
	}
	return first, last
}

// hold notes what a node holds, in place of what it held before.
func (b *blocks) hold(node string, uid types.UID, holds []netip.Prefix) {
	have, ok := b.holders[node]
	if ok && have.uid == uid && have.left.IsZero() && slices.Equal(have.holds, holds) {
		return
	}
	b.free(node)
	if len(holds) == 0 {
		return
	}
	b.holders[node] = holder{uid: uid, holds: holds}
	b.count(holds, 1)
}

func (b *blocks) count(holds []netip.Prefix, by int) {
	for _, p := range holds {
		if !p.Overlaps(b.cluster) || !b.sound() {
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

// leave keeps what a node that was deleted has held for one of its name, for comeback at
// most, if it is still the one with that UID.
func (b *blocks) leave(node string, uid types.UID, now time.Time) {
	if have, ok := b.holders[node]; ok && have.uid == uid {
		have.left = now
		b.holders[node] = have
	}
}

// expire forgets what a node that was deleted has held, once comeback is over; it returns
// how long that is.
func (b *blocks) expire(node string, now time.Time) time.Duration {
	have, ok := b.holders[node]
	if !ok {
		return 0
	}
	left := have.left.Add(comeback).Sub(now)
	if left > 0 {
		return left
	}
	b.free(node)
	return 0
}

// returned has a node hold the block again that one of its name has left, and tells
// whether there is one.
func (b *blocks) returned(node string, uid types.UID) (netip.Prefix, bool) {
	have, ok := b.holders[node]
	if !ok || have.left.IsZero() || have.uid == uid || !b.sound() {
		return netip.Prefix{}, false
	}
	for _, p := range have.holds {
		if p.Bits() == b.bits && p.Overlaps(b.cluster) && b.taken[b.number(p.Addr())] == 1 {
			b.hold(node, uid, []netip.Prefix{p})
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// evict frees a block that waits for a node, the one that has waited longest, and tells
// whether there was one.
func (b *blocks) evict() bool {
	longest, since := "", time.Time{}
	for node, have := range b.holders {
		waits := !have.left.IsZero() && slices.ContainsFunc(have.holds, b.cluster.Overlaps)
		if waits && (longest == "" || have.left.Before(since)) {
			longest, since = node, have.left
		}
	}
	if longest == "" {
		return false
	}
	b.free(longest)
	return true
}

// free forgets what a node holds.
func (b *blocks) free(node string) {
	if have, ok := b.holders[node]; ok {
		delete(b.holders, node)
		b.count(have.holds, -1)
	}
}

// give returns the block that the node holds, else the one that a deleted node of its name
// has left, else the lowest that is free, which it holds from now on. It fails when the
// range is full, and when it has no blocks of that size.
func (b *blocks) give(node string, uid types.UID) (netip.Prefix, error) {
	var holds []netip.Prefix
	if have, ok := b.holders[node]; ok && have.uid == uid {
		holds = have.holds
	}
	if i := slices.IndexFunc(holds, b.cluster.Overlaps); i >= 0 {
		return holds[i], nil
	}
	if !b.sound() {
		return netip.Prefix{}, fmt.Errorf("%s has no blocks of /%d, or too many", b.cluster, b.bits)
	}
	if block, ok := b.returned(node, uid); ok {
		return block, nil
	}
	for b.taken[b.low] > 0 {
		if b.low == b.last() {
			if b.evict() {
				continue
			}
			return netip.Prefix{}, fmt.Errorf("%s has no free /%d left", b.cluster, b.bits)
		}
		b.low++
	}
	block := b.block(b.low)
	b.hold(node, uid, append(slices.Clone(holds), block))
	return block, nil
}

// gave tells whether the node holds a block of the range, or left one there.
func (b *blocks) gave(node string, uid types.UID) bool {
	have, ok := b.holders[node]
	return ok && (have.uid == uid || !have.left.IsZero()) && slices.ContainsFunc(have.holds, b.cluster.Overlaps)
}

// number is that of the block which an address of the range is in: the address's
// bits between those of the range and those of a block.
func (b *blocks) number(a netip.Addr) uint32 {
	var n uint32
	bytes := a.AsSlice()
	for bit := b.cluster.Bits(); bit < b.bits; bit++ {
		n = n<<1 | uint32(bytes[bit/8]>>(7-bit%8)&1)
	}
	return n
}

// block is the one with a number.
func (b *blocks) block(n uint32) netip.Prefix {
	bytes := b.cluster.Addr().AsSlice()
	for bit := b.bits - 1; bit >= b.cluster.Bits(); bit-- {
		bytes[bit/8] |= byte(n&1) << (7 - bit%8)
		n >>= 1
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(addr, b.bits)
}
