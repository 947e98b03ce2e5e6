package nodeipam

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// next returns the lowest block of size bits in cluster that overlaps none of
// used. It fails when the range is full.
func next(cluster netip.Prefix, bits int, used []netip.Prefix) (netip.Prefix, error) {
	cluster = cluster.Masked()
	if !cluster.Addr().Is4() || bits < cluster.Bits() || bits > 32 {
		return netip.Prefix{}, fmt.Errorf("no IPv4 blocks of /%d in %s", bits, cluster)
	}
	taken := make(map[uint32]bool, len(used))
	base := number(cluster.Addr())
	for _, u := range used {
		if !u.Addr().Is4() || !u.Overlaps(cluster) {
			continue
		}
		// A block of another size takes every block that it touches.
		first := number(u.Masked().Addr()) >> (32 - bits)
		last := first
		if u.Bits() < bits {
			last += 1<<(bits-u.Bits()) - 1
		}
		for n := first; n <= last; n++ {
			taken[n] = true
			if n-(base>>(32-bits)) > 1<<(bits-cluster.Bits()) {
				break
			}
		}
	}
	first := uint64(base >> (32 - bits))
	for n := first; n < first+1<<(bits-cluster.Bits()); n++ {
		if !taken[uint32(n)] {
			var addr [4]byte
			binary.BigEndian.PutUint32(addr[:], uint32(n<<(32-bits)))
			return netip.PrefixFrom(netip.AddrFrom4(addr), bits), nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("%s has no free /%d left", cluster, bits)
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}
