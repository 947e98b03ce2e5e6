package foreign

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// filter are the types of messages that a socket takes, of links only those that are down
// where downOnly is set. All others the kernel drops.
type filter struct {
	types    []uint16
	downOnly uint16
}

var (
	// newGeneration is what nftables says once after each transaction.
	newGeneration = filter{types: []uint16{unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN}}
	networkChange = filter{
		types:    []uint16{unix.RTM_DELLINK, unix.RTM_DELADDR, unix.RTM_DELROUTE, unix.RTM_NEWNETCONF},
		downOnly: unix.RTM_NEWLINK,
	}
)

const (
	typeOffset = 4  // of a message's type, in struct nlmsghdr
	flagOffset = 24 // of an interface's flags: struct nlmsghdr, then 8 bytes of struct ifinfomsg
)

// assemble makes the program that the kernel runs. It loads numbers in the network's
// order, and messages have the machine's.
func (f filter) assemble() ([]bpf.RawInstruction, error) {
	p := []bpf.Instruction{bpf.LoadAbsolute{Off: typeOffset, Size: 2}}
	for _, t := range f.types {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(asLoaded16(t)), SkipTrue: 1}, accept)
	}
	if f.downOnly != 0 {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(asLoaded16(f.downOnly)), SkipTrue: 3},
			bpf.LoadAbsolute{Off: flagOffset, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: asLoaded32(unix.IFF_UP), SkipTrue: 1},
			accept)
	}
	return bpf.Assemble(append(p, bpf.RetConstant{}))
}

// accept lets all of a message pass.
var accept = bpf.RetConstant{Val: 1<<32 - 1}

func asLoaded16(n uint16) uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n))
}

func asLoaded32(n uint32) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, n))
}

// Attributes and lengths of the kernel's headers (linux/netfilter/nf_tables.h,
// linux/if_link.h, linux/netconf.h).
const (
	genHeader       = 4 // struct nfgenmsg
	genProcessName  = 3 // NFTA_GEN_PROC_NAME
	linkHeader      = unix.SizeofIfInfomsg
	netconfHeader   = 4 // struct netconfmsg, padded
	netconfIndex    = 1 // NETCONFA_IFINDEX
	netconfIndexAll = -1
	addrHeader      = unix.SizeofIfAddrmsg
	addrScope       = 3 // where struct ifaddrmsg has the scope
	routeHeader     = unix.SizeofRtMsg
	routeType       = 7 // where struct rtmsg has the type
)

// byAnother tells whether a generation of rules was made by a process of another name
// than own. Processes of one name are this one and its like, which know what they do.
func byAnother(m netlink.Message, own string) bool {
	d := attributes(m, genHeader)
	for d != nil && d.Next() {
		if d.Type() == genProcessName {
			return d.String() != own
		}
	}
	return true // a kernel that does not tell
}

// concerns tells whether a change may be one of what a network with this bridge made.
func concerns(m netlink.Message, bridge string) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		d := attributes(m, linkHeader)
		for d != nil && d.Next() {
			if d.Type() == unix.IFLA_IFNAME {
				return strings.HasPrefix(d.String(), bridge)
			}
		}
		return false
	case unix.RTM_NEWNETCONF:
		d := attributes(m, netconfHeader)
		for d != nil && d.Next() {
			if d.Type() == netconfIndex {
				return d.Int32() == netconfIndexAll
			}
		}
		return false
	case unix.RTM_DELADDR:
		return len(m.Data) >= addrHeader && m.Data[addrScope] != unix.RT_SCOPE_LINK
	case unix.RTM_DELROUTE:
		return len(m.Data) >= routeHeader && m.Data[routeType] == unix.RTN_UNICAST && !onLink(m)
	}
	return false
}

// onLink tells whether a route is one of those that an interface has of its own with IPv6,
// which go with it: fe80::/10, ff00::/8.
func onLink(m netlink.Message) bool {
	d := attributes(m, routeHeader)
	for d != nil && d.Next() {
		if d.Type() == unix.RTA_DST {
			a, ok := netip.AddrFromSlice(d.Bytes())
			return ok && (a.IsLinkLocalUnicast() && a.Is6() || a.IsMulticast())
		}
	}
	return false
}

// attributes of a message after its header; nil if there are none.
func attributes(m netlink.Message, header int) *netlink.AttributeDecoder {
	if len(m.Data) < header {
		return nil
	}
	d, err := netlink.NewAttributeDecoder(m.Data[header:])
	if err != nil {
		return nil
	}
	return d
}
