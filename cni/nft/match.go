package nft

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// comparison holds for packets whose field is, or is not, a value.
type comparison struct {
	field Field
	not   bool
	value Data
}

func (s comparison) String() string {
	return s.field.text + operator(s.not) + s.value.print(s.field.kind)
}

func (s comparison) compile(*compiler) []expr.Any {
	return []expr.Any{s.field.load(register(0)), &expr.Cmp{Op: compareOp(s.not), Register: register(0), Data: s.value}}
}

// bitwise keeps the mask's bits of what is loaded, and turns those of flip.
func bitwise(mask, flip Data) expr.Any {
	return &expr.Bitwise{
		SourceRegister: register(0), DestRegister: register(0), Len: uint32(len(mask)), Mask: mask, Xor: flip,
	}
}

func operator(not bool) string {
	if not {
		return " != "
	}
	return " "
}

func compareOp(not bool) expr.CmpOp {
	if not {
		return expr.CmpOpNeq
	}
	return expr.CmpOpEq
}

// within holds for packets whose address is, or is not, in a range.
type within struct {
	field  Field
	not    bool
	prefix netip.Prefix
}

func (s within) String() string {
	if s.prefix.IsSingleIP() {
		return s.field.text + operator(s.not) + s.prefix.Addr().String()
	}
	return s.field.text + operator(s.not) + s.prefix.Masked().String()
}

func (s within) compile(*compiler) []expr.Any {
	bytes := s.field.kind.Bytes
	return []expr.Any{
		s.field.load(register(0)),
		bitwise(Data(net.CIDRMask(s.prefix.Bits(), int(8*bytes))), make(Data, bytes)),
		&expr.Cmp{Op: compareOp(s.not), Register: register(0), Data: s.prefix.Masked().Addr().AsSlice()},
	}
}

// SaddrIn holds for packets from a range, SaddrNotIn for others; DaddrIn and
// DaddrNotIn for packets to it.
func SaddrIn(p netip.Prefix) Statement { return within{FamilyOf(p.Addr()).Saddr(), false, p} }

// SaddrNotIn is described at SaddrIn.
func SaddrNotIn(p netip.Prefix) Statement { return within{FamilyOf(p.Addr()).Saddr(), true, p} }

// DaddrIn is described at SaddrIn.
func DaddrIn(p netip.Prefix) Statement { return within{FamilyOf(p.Addr()).Daddr(), false, p} }

// DaddrNotIn is described at SaddrIn.
func DaddrNotIn(p netip.Prefix) Statement { return within{FamilyOf(p.Addr()).Daddr(), true, p} }

// DaddrIs holds for packets to one address.
func DaddrIs(a netip.Addr) Statement { return DaddrIn(netip.PrefixFrom(a, a.BitLen())) }

// ToLocal holds for a destination address of this machine, NotToLocal for
// another's; FromLocal for a source address of this machine.
func ToLocal() Statement { return comparison{fibDaddr(), false, local} }

// NotToLocal is described at ToLocal.
func NotToLocal() Statement { return comparison{fibDaddr(), true, local} }

// FromLocal is described at ToLocal.
func FromLocal() Statement {
	return comparison{fib("fib saddr type", expr.Fib{FlagSADDR: true}), false, local}
}

func fibDaddr() Field { return fib("fib daddr type", expr.Fib{FlagDADDR: true}) }

var local = native(unix.RTN_LOCAL)

func native(v uint32) Data { return binary.NativeEndian.AppendUint32(nil, v) }

// NotFromLoopback holds for packets that came by another interface than the
// loopback.
func NotFromLoopback() Statement {
	kind := meta("meta iiftype", nftables.TypeARPHRD, expr.MetaKeyIIFTYPE)
	return comparison{kind, true, binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_LOOPBACK)}
}

// ProtoIs holds for packets of an IP protocol, by its number.
func ProtoIs(p uint8) Statement { return comparison{L4Proto(), false, Data{p}} }

// ICMPType holds for packets of ICMP or ICMPv6 of a type, by its number; of the two
// it is that which a rule asked for before.
func ICMPType(kind uint8) Statement {
	first := payload("@th,0,8", nftables.TypeInteger, expr.PayloadBaseTransportHeader, 0)
	first.kind.Bytes = 1
	first.load = func(register uint32) expr.Any {
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Len: 1}
	}
	return comparison{first, false, Data{kind}}
}

// FromGroup holds for packets that came by an interface of a group (ip-link(8)).
func FromGroup(group uint32) Statement {
	return comparison{meta("iifgroup", nftables.TypeDevGroup, expr.MetaKeyIIFGROUP), false, native(group)}
}

// FromInterface holds for packets that came by an interface.
func FromInterface(name string) Statement {
	return comparison{iifName(), false, Data{}.Interface(name)}
}

// SaddrBy holds for packets whose source this machine reaches by an interface.
func SaddrBy(name string) Statement {
	by := Field{"fib saddr oifname", nftables.TypeIFName, func(register uint32) expr.Any {
		return &expr.Fib{Register: register, FlagSADDR: true, ResultOIFNAME: true}
	}}
	return comparison{by, false, Data{}.Interface(name)}
}

// EtherType holds for frames that carry a protocol, as unix.ETH_P_* numbers it,
// EtherTypeNot for others.
func EtherType(protocol uint16) Statement { return comparison{etherType(), false, big(protocol)} }

// EtherTypeNot is described at EtherType.
func EtherTypeNot(protocol uint16) Statement { return comparison{etherType(), true, big(protocol)} }

func etherType() Field { return meta("meta protocol", nftables.TypeEtherType, expr.MetaKeyPROTOCOL) }

func big(v uint16) Data { return binary.BigEndian.AppendUint16(nil, v) }

// EtherTo holds for frames to a hardware address.
func EtherTo(a net.HardwareAddr) Statement { return comparison{etherDaddr(), false, Data(a)} }

// bits holds for packets with one of some bits in a field. Bits with a name in
// the field's type are told by it.
type bits struct {
	field Field
	mask  uint32
}

func (s bits) String() string {
	if name, known := names[s.field.kind.Name][s.mask]; known {
		return s.field.text + " " + name
	}
	return fmt.Sprintf("%s & 0x%08x != 0x%08x", s.field.text, s.mask, 0)
}

func (s bits) compile(*compiler) []expr.Any {
	return []expr.Any{
		s.field.load(register(0)),
		bitwise(native(s.mask), native(0)),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register(0), Data: native(0)},
	}
}

// Of nf_conntrack_common.h: a flow's first packet, and a flow whose destination
// was rewritten.
const (
	ctNew     = expr.CtStateBitNEW
	ctInvalid = expr.CtStateBitINVALID
	ctDNAT    = 1 << 5
)

// New holds for the first packet of a flow.
func New() Statement {
	return bits{conntrack("ct state", nftables.TypeCTState, expr.CtKeySTATE), ctNew}
}

// Invalid holds for packets that fit into no flow as conntrack sees it.
func Invalid() Statement {
	return bits{conntrack("ct state", nftables.TypeCTState, expr.CtKeySTATE), ctInvalid}
}

// Related holds for packets that are about a flow and not of it, such as ICMP errors.
func Related() Statement {
	return bits{conntrack("ct state", nftables.TypeCTState, expr.CtKeySTATE), expr.CtStateBitRELATED}
}

// Reply holds for packets from the one who answers a flow to the one who began it.
func Reply() Statement {
	return comparison{conntrack("ct direction", nftables.TypeCTDir, expr.CtKeyDIRECTION), false, Data{directionReply}}
}

// directionReply is of nf_conntrack_tuple_common.h.
const directionReply = 1

// Redirected holds for packets of a flow whose destination was rewritten.
func Redirected() Statement {
	return bits{conntrack("ct status", nftables.TypeCTStatus, expr.CtKeySTATUS), ctDNAT}
}

// Marked holds for packets with a bit of mask in their mark.
func Marked(mask uint32) Statement { return bits{mark(), mask} }

func mark() Field { return meta("meta mark", nftables.TypeMark, expr.MetaKeyMARK) }

// membership holds for packets whose key is in a set.
type membership struct {
	key Key
	set *Set
}

func (s membership) String() string { return s.key.String() + " @" + s.set.Name }

func (s membership) compile(*compiler) []expr.Any {
	return append(s.key.load(), &expr.Lookup{SourceRegister: register(0), SetName: s.set.Name})
}

// In holds for packets whose key is in a set.
func In(k Key, s *Set) Statement { return membership{k, s} }

// portIn holds for packets of a protocol whose port is in a set. nft tells the
// protocol by the port's name.
type portIn struct {
	proto uint8
	name  string
	port  Field
	set   *Set
}

func (s portIn) String() string {
	return fmt.Sprintf("%s %s @%s", Data{s.proto}.print(nftables.TypeInetProto), s.name, s.set.Name)
}

func (s portIn) compile(c *compiler) []expr.Any {
	return append(ProtoIs(s.proto).compile(c), In(Key{s.port}, s.set).compile(c)...)
}

// DportIn holds for packets of TCP, UDP or SCTP to a port that is in a set, SportIn
// for those from one.
func DportIn(proto uint8, s *Set) Statement { return portIn{proto, "dport", Dport(), s} }

// SportIn is described at DportIn.
func SportIn(proto uint8, s *Set) Statement { return portIn{proto, "sport", Sport(), s} }

// over holds for the packets of a key that are more than a rate allows.
type over struct {
	key   Key
	set   *Set
	rate  uint64 // a second
	burst uint32
}

func (s over) String() string {
	limit := fmt.Sprintf("limit rate over %d/second burst %d packets", s.rate, s.burst)
	return fmt.Sprintf("update @%s { %s %s }", s.set.Name, s.key, limit)
}

func (s over) compile(*compiler) []expr.Any {
	return append(s.key.load(), update(s.set, &expr.Limit{
		Type: expr.LimitTypePkts, Rate: s.rate, Unit: expr.LimitTimeSecond, Burst: s.burst, Over: true,
	}))
}

// update writes the loaded key into a set, with what an element counts.
func update(s *Set, count ...expr.Any) expr.Any {
	const operation = uint32(unix.NFT_DYNSET_OP_UPDATE)
	return &expr.Dynset{SrcRegKey: register(0), SetName: s.Name, Operation: operation, Exprs: count}
}

// Over holds for the packets of a key that are over the rate a second; the set,
// which must have a timeout, holds a count for each key.
func Over(k Key, s *Set, rate uint64, burst uint32) Statement { return over{k, s, rate, burst} }
