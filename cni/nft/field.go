package nft

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Type is the type of a set's keys or data.
type Type = nftables.SetDatatype

// Verdict is the data's type of a map that leads to chains.
var Verdict = nftables.TypeVerdict

// Field is what a rule loads to look at it: a part of a packet, what the kernel
// knows of it, or a constant.
type Field struct {
	text string
	kind Type
	load func(register uint32) expr.Any
}

// Key is some fields side by side, as a set has them.
type Key []Field

// And returns the key with one more field.
func (k Key) And(f Field) Key { return append(k[:len(k):len(k)], f) }

// Type is the type of the keys of a set to look this one up in.
func (k Key) Type() Type {
	if len(k) == 1 {
		return k[0].kind
	}
	kinds := make([]Type, len(k))
	for i, f := range k {
		kinds[i] = f.kind
	}
	return nftables.MustConcatSetType(kinds...)
}

// String is the key in nft's language.
func (k Key) String() string {
	texts := make([]string, len(k))
	for i, f := range k {
		texts[i] = f.text
	}
	return strings.Join(texts, " . ")
}

// load puts the fields into registers, from the first on.
func (k Key) load() []expr.Any {
	exprs := make([]expr.Any, len(k))
	at := uint32(0)
	for i, f := range k {
		exprs[i] = f.load(register(at))
		at += words(f.kind)
	}
	return exprs
}

// result is the first word after the key that a looked-up value may be put to.
func (k Key) result() uint32 {
	at := uint32(0)
	for _, f := range k {
		at += words(f.kind)
	}
	return max(wordsOfRegister, (at+wordsOfRegister-1)/wordsOfRegister*wordsOfRegister)
}

// wordsOfRegister is how many words of four bytes a whole register has.
const wordsOfRegister = 4

// words is how many words a value of a type takes in registers.
func words(t Type) uint32 { return (t.Bytes + 3) / 4 }

// register names the registers from a word on.
func register(word uint32) uint32 {
	if word%wordsOfRegister == 0 {
		return unix.NFT_REG_1 + word/wordsOfRegister
	}
	return unix.NFT_REG32_00 + word
}

func payload(text string, kind Type, base expr.PayloadBase, offset uint32) Field {
	return Field{text, kind, func(register uint32) expr.Any {
		return &expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: kind.Bytes}
	}}
}

func meta(text string, kind Type, key expr.MetaKey) Field {
	return Field{text, kind, func(register uint32) expr.Any { return &expr.Meta{Key: key, Register: register} }}
}

func conntrack(text string, kind Type, key expr.CtKey) Field {
	return Field{text, kind, func(register uint32) expr.Any { return &expr.Ct{Key: key, Register: register} }}
}

// fib is the kind of an address in this machine's routes.
func fib(text string, what expr.Fib) Field {
	what.ResultADDRTYPE = true
	return Field{text, nftables.TypeFIBAddr, func(register uint32) expr.Any {
		f := what
		f.Register = register
		return &f
	}}
}

// L4Proto is the protocol above IP.
func L4Proto() Field { return meta("meta l4proto", nftables.TypeInetProto, expr.MetaKeyL4PROTO) }

// Dport is the destination's port, of any protocol that has ports.
func Dport() Field {
	return payload("th dport", nftables.TypeInetService, expr.PayloadBaseTransportHeader, 2)
}

// Sport is the source's port, of any protocol that has ports.
func Sport() Field {
	return payload("th sport", nftables.TypeInetService, expr.PayloadBaseTransportHeader, 0)
}

// Random is a number at random, below n.
func Random(n int) Field {
	return Field{"numgen random mod " + strconv.Itoa(n), nftables.TypeMark, func(register uint32) expr.Any {
		return &expr.Numgen{Register: register, Modulus: uint32(n), Type: unix.NFT_NG_RANDOM}
	}}
}

// Fixed is an address itself.
func Fixed(a netip.Addr) Field {
	return Field{a.String(), FamilyOf(a).header().kind, func(register uint32) expr.Any {
		return &expr.Immediate{Register: register, Data: a.AsSlice()}
	}}
}

// iifName is the interface by which a packet came, in a bridge its port.
func iifName() Field { return meta("iifname", nftables.TypeIFName, expr.MetaKeyIIFNAME) }

// etherSaddr is the hardware address that a frame says to be from.
func etherSaddr() Field {
	return payload("ether saddr", nftables.TypeEtherAddr, expr.PayloadBaseLLHeader, 6)
}

// etherDaddr is the hardware address that a frame is for.
func etherDaddr() Field {
	return payload("ether daddr", nftables.TypeEtherAddr, expr.PayloadBaseLLHeader, 0)
}

// arpEther and arpAddr are whose address an ARP frame tells (RFC 826, of Ethernet
// and IPv4).
func arpEther() Field {
	return payload("arp saddr ether", nftables.TypeEtherAddr, expr.PayloadBaseNetworkHeader, 8)
}

func arpAddr() Field {
	return payload("arp saddr ip", nftables.TypeIPAddr, expr.PayloadBaseNetworkHeader, 14)
}

// ARPFrame is the key of who sends an ARP frame, as V4's Sender.
func ARPFrame() Key { return Key{iifName(), etherSaddr(), arpAddr()} }

// ARPSender is the key of what an ARP frame's receiver would remember, as V4's
// Sender.
func ARPSender() Key { return Key{iifName(), arpEther(), arpAddr()} }
