// Package nft holds the words that Shoal's nftables rules are made of, over
// google/nftables: expressions by what they say, and a connection whose
// buffers fit large transactions. It knows no rule of its own.
package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// socketBuffer lets a transaction of some thousand messages and the kernel's
// acknowledgement of each pass; it is a limit, not an allocation.
const socketBuffer = 64 << 20

// Open returns a lasting connection to this network namespace's nftables.
func Open() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		if err := c.SetReadBuffer(socketBuffer); err != nil {
			return err
		}
		return c.SetWriteBuffer(socketBuffer)
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// lastSetID starts above the ids that google/nftables counts without a lock.
var lastSetID atomic.Uint32

// SetID returns an id for a set within one transaction, unique in this process.
func SetID() uint32 { return 1<<20 + lastSetID.Add(1) }

// Registers: the first word of the concatenation registers is also register 1.
const (
	reg0 = unix.NFT_REG_1
	reg1 = unix.NFT_REG32_01
	reg2 = unix.NFT_REG32_02
	reg3 = unix.NFT_REG32_03
	// regData is where map results go that must not overwrite a key.
	regData  = unix.NFT_REG_2
	regData1 = unix.NFT_REG32_05
)

// Key parts of IPv4 headers, to be used in concatenations, in this order of registers.
func payload(base expr.PayloadBase, offset, length, reg uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: base, Offset: offset, Len: length}
}

func saddr(reg uint32) expr.Any { return payload(expr.PayloadBaseNetworkHeader, 12, 4, reg) }
func daddr(reg uint32) expr.Any { return payload(expr.PayloadBaseNetworkHeader, 16, 4, reg) }
func dport(reg uint32) expr.Any { return payload(expr.PayloadBaseTransportHeader, 2, 2, reg) }
func proto(reg uint32) expr.Any { return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg} }

// Rule joins statements to one rule.
func Rule(parts ...[]expr.Any) []expr.Any { return slices.Concat(parts...) }

// AddrProtoPort loads the key "ip daddr . meta l4proto . th dport".
func AddrProtoPort() []expr.Any { return []expr.Any{daddr(reg0), proto(reg1), dport(reg2)} }

// ProtoPort loads the key "meta l4proto . th dport".
func ProtoPort() []expr.Any { return []expr.Any{proto(reg0), dport(reg1)} }

// AddrPair loads the key "ip saddr . ip daddr".
func AddrPair() []expr.Any { return []expr.Any{saddr(reg0), daddr(reg1)} }

// Saddr loads the key "ip saddr".
func Saddr() []expr.Any { return []expr.Any{saddr(reg0)} }

// Daddr loads the key "ip daddr".
func Daddr() []expr.Any { return []expr.Any{daddr(reg0)} }

// Random loads a random number below n as key.
func Random(n int) []expr.Any {
	return []expr.Any{&expr.Numgen{Register: reg0, Modulus: uint32(n), Type: unix.NFT_NG_RANDOM}}
}

// In continues only if the loaded key is in the set (or, inverted, is not).
func In(s *nftables.Set, invert bool) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg0, SetName: s.Name, SetID: s.ID, Invert: invert}}
}

// Vmap takes the verdict that the map holds for the loaded key.
func Vmap(s *nftables.Set) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg0, SetName: s.Name, SetID: s.ID, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT}}
}

// AndRandom loads a random number below n as the next part of the loaded key,
// which has that many parts.
func AndRandom(parts, n int) []expr.Any {
	return []expr.Any{&expr.Numgen{Register: []uint32{reg0, reg1, reg2, reg3}[parts], Modulus: uint32(n), Type: unix.NFT_NG_RANDOM}}
}

// Target looks the loaded key up in a map of "ipv4_addr . inet_service" and
// holds the result for DNAT; the rule ends here on a miss.
func Target(s *nftables.Set) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg0, SetName: s.Name, SetID: s.ID, IsDestRegSet: true, DestRegister: regData}}
}

// FixedTarget holds one address and port for DNAT.
func FixedTarget(ap netip.AddrPort) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: regData, Data: ap.Addr().AsSlice()},
		&expr.Immediate{Register: regData1, Data: binary.BigEndian.AppendUint16(nil, ap.Port())},
	}
}

// SaddrWith loads the key "ip saddr . a" with a fixed second address.
func SaddrWith(a netip.Addr) []expr.Any {
	return []expr.Any{saddr(reg0), &expr.Immediate{Register: reg1, Data: a.AsSlice()}}
}

// Remember writes the loaded key into a dynamic set, renewing its timeout.
func Remember(s *nftables.Set) []expr.Any {
	return []expr.Any{&expr.Dynset{
		SrcRegKey: reg0, SetName: s.Name, SetID: s.ID, Operation: uint32(unix.NFT_DYNSET_OP_UPDATE),
	}}
}

// DNAT sends the flow to the held target.
func DNAT() []expr.Any {
	return []expr.Any{&expr.NAT{
		Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4,
		RegAddrMin: regData, RegProtoMin: regData1, Specified: true,
	}}
}

// Masquerade rewrites the source to the outgoing interface's address.
func Masquerade() []expr.Any { return []expr.Any{&expr.Masq{FullyRandom: true}} }

// SaddrIn and DaddrIn continue only if the address is (or is not) in the prefix.
func SaddrIn(p netip.Prefix, invert bool) []expr.Any { return prefixMatch(saddr(reg0), p, invert) }

// DaddrIn is described at SaddrIn.
func DaddrIn(p netip.Prefix, invert bool) []expr.Any { return prefixMatch(daddr(reg0), p, invert) }

func prefixMatch(load expr.Any, p netip.Prefix, invert bool) []expr.Any {
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-p.Bits()))
	if p.Bits() == 0 {
		mask = make([]byte, 4)
	}
	return []expr.Any{
		load,
		&expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: cmpOp(invert), Register: reg0, Data: p.Masked().Addr().AsSlice()},
	}
}

func cmpOp(invert bool) expr.CmpOp {
	if invert {
		return expr.CmpOpNeq
	}
	return expr.CmpOpEq
}

// ToLocal continues only for a destination address of this machine, NotToLocal
// for another's; FromLocal for a source address of this machine.
func ToLocal() []expr.Any { return fibLocal(&expr.Fib{FlagDADDR: true}, false) }

// NotToLocal is described at ToLocal.
func NotToLocal() []expr.Any { return fibLocal(&expr.Fib{FlagDADDR: true}, true) }

// FromLocal is described at ToLocal.
func FromLocal() []expr.Any { return fibLocal(&expr.Fib{FlagSADDR: true}, false) }

func fibLocal(f *expr.Fib, invert bool) []expr.Any {
	f.Register, f.ResultADDRTYPE = reg0, true
	return []expr.Any{f, &expr.Cmp{Op: cmpOp(invert), Register: reg0, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)}}
}

// NotFromLoopback continues only for packets that came by another interface
// than the loopback.
func NotFromLoopback() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFTYPE, Register: reg0},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg0, Data: binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_LOOPBACK)},
	}
}

// ProtoIs continues only for the given IP protocol number.
func ProtoIs(p uint8) []expr.Any {
	return []expr.Any{proto(reg0), &expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: []byte{p}}}
}

// Mark sets the packet mark's bits of mask, leaving the others.
func Mark(mask uint32) []expr.Any {
	return markBits(^mask, mask)
}

// Unmark clears the packet mark's bits of mask.
func Unmark(mask uint32) []expr.Any { return markBits(^mask, 0) }

func markBits(keep, set uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg0},
		&expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: 4, Mask: native(keep), Xor: native(set)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg0},
	}
}

// Marked continues only if a bit of mask is set in the packet mark.
func Marked(mask uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg0},
		&expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: 4, Mask: native(mask), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg0, Data: native(0)},
	}
}

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// New continues only for the first packet of a flow.
func New() []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: reg0, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: 4, Mask: native(expr.CtStateBitNEW), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg0, Data: native(0)},
	}
}

// Redirected continues only for packets of a flow whose destination was rewritten.
func Redirected() []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: reg0, Key: expr.CtKeySTATUS},
		&expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: 4, Mask: native(statusDNAT), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg0, Data: native(0)},
	}
}

// statusDNAT is IPS_DST_NAT of nf_conntrack_common.h.
const statusDNAT = 1 << 5

// Verdicts.
func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
}

// Return ends the chain.
func Return() []expr.Any { return verdict(expr.VerdictReturn, "") }

// Drop drops the packet.
func Drop() []expr.Any { return verdict(expr.VerdictDrop, "") }

// Goto continues in chain without coming back.
func Goto(chain string) []expr.Any { return verdict(expr.VerdictGoto, chain) }

// Jump runs chain and comes back.
func Jump(chain string) []expr.Any { return verdict(expr.VerdictJump, chain) }

// RejectTCP answers with a TCP reset.
func RejectTCP() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
}

// RejectICMP answers "port unreachable".
func RejectICMP() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 3}}
}

// Types of keys and data.
var (
	TypeAddrProtoPort = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
	TypeProtoPort     = nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)
	TypeAddrPair      = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr)
	// A number as AndRandom loads it.
	TypeAddrProtoPortNumber = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeMark)
	TypeProtoPortNumber     = nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeMark)
	TypeTarget              = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
)

// KeyAddrProtoPort encodes an element's key for TypeAddrProtoPort.
func KeyAddrProtoPort(a netip.Addr, proto uint8, port uint16) []byte {
	b := append(make([]byte, 0, 12), a.AsSlice()...)
	b = append(b, proto, 0, 0, 0)
	return append(b, byte(port>>8), byte(port), 0, 0)
}

// KeyProtoPort encodes an element's key for TypeProtoPort.
func KeyProtoPort(proto uint8, port uint16) []byte {
	return []byte{proto, 0, 0, 0, byte(port >> 8), byte(port), 0, 0}
}

// KeyAddrPair encodes an element's key for TypeAddrPair.
func KeyAddrPair(a, b netip.Addr) []byte { return append(a.AsSlice(), b.AsSlice()...) }

// ValTarget encodes an element's value for TypeTarget.
func ValTarget(ap netip.AddrPort) []byte {
	return append(ap.Addr().AsSlice(), byte(ap.Port()>>8), byte(ap.Port()), 0, 0)
}

// ParseTarget is ValTarget's inverse; the zero AddrPort for anything else.
func ParseTarget(b []byte) netip.AddrPort {
	if len(b) < 6 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), binary.BigEndian.Uint16(b[4:]))
}

// Proto returns the IP protocol number of TCP, UDP or SCTP in any letter case; 0 for another name.
func Proto(name string) uint8 {
	switch name {
	case "TCP", "tcp", "":
		return unix.IPPROTO_TCP
	case "UDP", "udp":
		return unix.IPPROTO_UDP
	case "SCTP", "sctp":
		return unix.IPPROTO_SCTP
	}
	return 0
}
