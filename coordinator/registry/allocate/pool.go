package allocate

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"net/netip"
)

// pool hands out the numbers 0 to size-1, each to one holder. Its owner
// serializes calls.
type pool struct {
	size uint64
	// static is how many low numbers are given out last, so that users who ask
	// for a number by name seldom find it taken (KEP-3070, KEP-3682).
	static uint64
	used   big.Int // a bit for each number
	taken  uint64  // the bits that are set
}

func newPool(size, static uint64) *pool {
	if static >= size {
		static = 0
	}
	return &pool{size: size, static: static}
}

// restore takes exactly the numbers of a bitmap, most significant byte first.
func (p *pool) restore(bitmap []byte) {
	p.used.SetBytes(bitmap)
	p.taken = 0
	for _, word := range p.used.Bits() {
		p.taken += uint64(bits.OnesCount(uint(word)))
	}
}

// holds tells whether n is taken.
func (p *pool) holds(n uint64) bool { return p.used.Bit(int(n)) == 1 }

// take reserves n; false: it is taken already.
func (p *pool) take(n uint64) bool {
	if p.holds(n) {
		return false
	}
	p.used.SetBit(&p.used, int(n), 1)
	p.taken++
	return true
}

func (p *pool) free(n uint64) {
	if p.holds(n) {
		p.used.SetBit(&p.used, int(n), 0)
		p.taken--
	}
}

// next reserves a random number above static, else one below; false: all are
// taken.
func (p *pool) next() (uint64, bool) {
	if p.taken >= p.size {
		return 0, false
	}
	for _, band := range [][2]uint64{{p.static, p.size}, {0, p.static}} {
		width := band[1] - band[0]
		if width == 0 {
			continue
		}
		start := rand.Uint64N(width)
		for i := range width {
			if n := band[0] + (start+i)%width; p.take(n) {
				return n, true
			}
		}
	}
	return 0, false
}

// addresses is a pool of the host addresses of a prefix.
type addresses struct {
	*pool
	prefix netip.Prefix
}

// newAddresses leaves out the network address, and the broadcast address of
// IPv4. An IPv6 prefix serves its first 2^20 addresses.
func newAddresses(prefix netip.Prefix) addresses {
	const most = 1 << 20
	prefix = prefix.Masked()
	bits := prefix.Addr().BitLen() - prefix.Bits()
	size := uint64(most)
	if bits < 32 {
		size = min(size, 1<<bits)
	}
	size-- // network
	if prefix.Addr().Is4() && bits > 1 && bits <= 20 {
		size-- // broadcast
	}
	return addresses{prefix: prefix, pool: newPool(size, min(max(16, size/16), 256))}
}

// index is the number of an address in the pool.
func (a addresses) index(ip netip.Addr) (uint64, error) {
	if a.prefix.Contains(ip) {
		base, at := low(a.prefix.Addr()), low(ip)
		if at > base && at-base-1 < a.size {
			return at - base - 1, nil
		}
	}
	return 0, fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %s", ip, a.prefix)
}

func (a addresses) at(n uint64) netip.Addr {
	value := low(a.prefix.Addr()) + n + 1
	if a.prefix.Addr().Is4() {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(value))
		return netip.AddrFrom4(b)
	}
	b := a.prefix.Addr().As16()
	binary.BigEndian.PutUint64(b[8:], value)
	return netip.AddrFrom16(b)
}

// low is the value of an address's lower 64 bits.
func low(ip netip.Addr) uint64 {
	if ip.Is4() {
		b := ip.As4()
		return uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := ip.As16()
	return binary.BigEndian.Uint64(b[8:])
}
