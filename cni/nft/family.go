package nft

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Family is an address family. The words that speak of addresses are its
// methods, so that a table for the other family is made of the same words.
type Family byte

// The families. A table of the Bridge family sees frames; the packets in them
// are V4's or V6's.
const (
	V4     Family = unix.NFPROTO_IPV4
	V6     Family = unix.NFPROTO_IPV6
	Bridge Family = unix.NFPROTO_BRIDGE
)

// FamilyOf returns an address's family; the zero Addr has none.
func FamilyOf(a netip.Addr) Family {
	switch {
	case a.Is4():
		return V4
	case a.Is6():
		return V6
	}
	return 0
}

// String is nft's name of the family.
func (f Family) String() string {
	switch f {
	case V4:
		return "ip"
	case V6:
		return "ip6"
	}
	return "bridge"
}

// AF is the family's number among those of sockets (socket(2)).
func (f Family) AF() uint16 {
	if f == V6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// header is where a packet of the family has its addresses.
type header struct {
	source, destination uint32
	kind                Type
}

func (f Family) header() header {
	if f == V6 {
		return header{8, 24, nftables.TypeIP6Addr} // RFC 8200, section 3
	}
	return header{12, 16, nftables.TypeIPAddr} // RFC 791, section 3.1
}

// Saddr is the packet's source address, Daddr its destination.
func (f Family) Saddr() Field {
	h := f.header()
	return payload(f.String()+" saddr", h.kind, expr.PayloadBaseNetworkHeader, h.source)
}

// Daddr is described at Saddr.
func (f Family) Daddr() Field {
	h := f.header()
	return payload(f.String()+" daddr", h.kind, expr.PayloadBaseNetworkHeader, h.destination)
}

// AddrProtoPort is the key of what listens on one address.
func (f Family) AddrProtoPort() Key { return Key{f.Daddr(), L4Proto(), Dport()} }

// SaddrProtoPort is the key of what a reply of one who listens on an address is from.
func (f Family) SaddrProtoPort() Key { return Key{f.Saddr(), L4Proto(), Sport()} }

// ProtoPort is the key of what listens on every address.
func ProtoPort() Key { return Key{L4Proto(), Dport()} }

// ICMP is the number of the family's protocol for errors and echoes.
func (f Family) ICMP() uint8 {
	if f == V6 {
		return unix.IPPROTO_ICMPV6
	}
	return unix.IPPROTO_ICMP
}

// AddrPair is the key of who sends to whom.
func (f Family) AddrPair() Key { return Key{f.Saddr(), f.Daddr()} }

// Sender is the key of the port of a bridge by which a packet came, with the
// addresses that it says to be from.
func (f Family) Sender() Key { return Key{iifName(), etherSaddr(), f.Saddr()} }

// Target is the type of where DNAT leads: an address and a port.
func (f Family) Target() Type {
	return nftables.MustConcatSetType(f.header().kind, nftables.TypeInetService)
}
