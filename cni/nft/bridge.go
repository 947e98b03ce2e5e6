package nft

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Registers after an interface name, which takes four words, and after a
// hardware address, which takes two.
const (
	regMAC  = unix.NFT_REG32_04
	regAddr = unix.NFT_REG32_06
)

// FromGroup continues only for packets that came by an interface of a group
// (ip-link(8)).
func FromGroup(group uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: reg0},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: native(group)},
	}
}

// EtherType continues only for frames that carry (or do not carry) a protocol,
// as unix.ETH_P_* numbers it.
func EtherType(protocol uint16, invert bool) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: reg0},
		&expr.Cmp{Op: cmpOp(invert), Register: reg0, Data: binary.BigEndian.AppendUint16(nil, protocol)},
	}
}

// EtherTo continues only for frames to a hardware address.
func EtherTo(a net.HardwareAddr) []expr.Any {
	return []expr.Any{
		payload(expr.PayloadBaseLLHeader, 0, 6, reg0),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: a},
	}
}

// IPSender loads the key "iifname . ether saddr . ip saddr".
func IPSender() []expr.Any {
	return []expr.Any{portName(), payload(expr.PayloadBaseLLHeader, 6, 6, regMAC), saddr(regAddr)}
}

// ARPFrame loads the key "iifname . ether saddr . arp saddr ip" (RFC 826).
func ARPFrame() []expr.Any {
	return []expr.Any{portName(), payload(expr.PayloadBaseLLHeader, 6, 6, regMAC), payload(expr.PayloadBaseNetworkHeader, 14, 4, regAddr)}
}

// ARPSender loads the key "iifname . arp saddr ether . arp saddr ip": what the
// frame's receiver would remember.
func ARPSender() []expr.Any {
	return []expr.Any{portName(), payload(expr.PayloadBaseNetworkHeader, 8, 6, regMAC), payload(expr.PayloadBaseNetworkHeader, 14, 4, regAddr)}
}

func portName() expr.Any { return &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg0} }

// TypeSender is the type of the keys of IPSender, ARPFrame and ARPSender.
var TypeSender = nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr, nftables.TypeIPAddr)

// KeySender encodes an element's key for TypeSender.
func KeySender(port string, mac net.HardwareAddr, a netip.Addr) []byte {
	b := make([]byte, unix.IFNAMSIZ, unix.IFNAMSIZ+12)
	copy(b, port)
	b = append(append(b, mac...), 0, 0)
	return append(b, a.AsSlice()...)
}

// Count counts the packets that come this far.
func Count() []expr.Any { return []expr.Any{&expr.Counter{}} }
