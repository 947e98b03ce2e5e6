package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	mathbits "math/bits"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Data is an element's key or value as the kernel has it. Each method appends
// one part, padded to whole words.
type Data []byte

// Addr appends an address.
func (d Data) Addr(a netip.Addr) Data {
	if a.Is4() {
		b := a.As4()
		return append(d, b[:]...)
	}
	b := a.As16()
	return append(d, b[:]...)
}

// Proto appends the number of a protocol above IP.
func (d Data) Proto(p uint8) Data { return append(d, p, 0, 0, 0) }

// Port appends a port.
func (d Data) Port(p uint16) Data { return append(d, byte(p>>8), byte(p), 0, 0) }

// Number appends what is compared with a random number.
func (d Data) Number(n uint32) Data { return binary.NativeEndian.AppendUint32(d, n) }

// MAC appends a hardware address.
func (d Data) MAC(a net.HardwareAddr) Data { return append(append(d, a...), 0, 0) }

// Interface appends an interface's name.
func (d Data) Interface(name string) Data {
	b := append(d, make([]byte, unix.IFNAMSIZ)...)
	copy(b[len(d):], name)
	return b
}

// AddrProtoPort is a key of Family.AddrProtoPort.
func AddrProtoPort(a netip.Addr, proto uint8, port uint16) Data {
	return make(Data, 0, 12).Addr(a).Proto(proto).Port(port)
}

// Target is a value of Family.Target.
func Target(to netip.AddrPort) Data { return make(Data, 0, 8).Addr(to.Addr()).Port(to.Port()) }

// ParseTarget is Target's inverse; the zero AddrPort for anything else.
func ParseTarget(d Data) netip.AddrPort {
	size := len(d) - 4
	a, ok := netip.AddrFromSlice(d[:max(size, 0)])
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(d[size:]))
}

// Interval is an element of a set of intervals: what is from first to last.
func Interval(first, last Data) Data { return append(append(Data{}, first...), last...) }

// AddrsOf are the addresses of a range, as an element of a set of intervals.
func AddrsOf(first, last netip.Addr) Data { return Interval(Data{}.Addr(first), Data{}.Addr(last)) }

// PortsOf are ports, as an element of a set of intervals.
func PortsOf(first, last uint16) Data { return Interval(big16(first), big16(last)) }

func big16(p uint16) Data { return Data{byte(p >> 8), byte(p)} }

// printInterval tells an interval as nft does: by one value, as a prefix where it
// is one, or by both ends.
func (d Data) printInterval(t Type) string {
	first, last := d[:len(d)/2], d[len(d)/2:]
	if bytes.Equal(first, last) {
		return first.print(t)
	}
	ones, prefix := 0, true
	for i := range first {
		differ := first[i] ^ last[i]
		size := mathbits.Len8(differ)
		// In a prefix what differs is a tail, all zeros in one and all ones in the other.
		prefix = prefix && int(differ) == 1<<size-1 && first[i]&differ == 0 && (ones == 8*i || differ == 0xff)
		ones += 8 - size
	}
	if prefix && t != nftables.TypeInetService {
		return fmt.Sprintf("%s/%d", first.print(t), ones)
	}
	return first.print(t) + "-" + last.print(t)
}

// after is the value that follows an interval's last; nil after the greatest.
func (d Data) after() Data {
	next := bytes.Clone(d)
	for i := len(next) - 1; i >= 0; i-- {
		if next[i]++; next[i] != 0 {
			return next
		}
	}
	return nil
}

// print tells a value of a type in nft's language.
func (d Data) print(t Type) string {
	if t == Verdict {
		return "goto " + string(d)
	}
	var parts []string
	for _, kind := range nftables.ConcatSetTypeElements(t) {
		part := d[:kind.Bytes]
		d = d[min(len(d), int(4*words(kind))):]
		parts = append(parts, part.printOne(kind))
	}
	return strings.Join(parts, " . ")
}

func (d Data) printOne(kind Type) string {
	switch kind {
	case nftables.TypeIPAddr, nftables.TypeIP6Addr:
		a, _ := netip.AddrFromSlice(d)
		return a.String()
	case nftables.TypeInetService:
		return strconv.Itoa(int(binary.BigEndian.Uint16(d)))
	case nftables.TypeEtherAddr:
		return net.HardwareAddr(d).String()
	case nftables.TypeIFName:
		return strconv.Quote(unix.ByteSliceToString(d))
	case nftables.TypeMark:
		return fmt.Sprintf("0x%08x", binary.NativeEndian.Uint32(d))
	}
	n := number(kind, d)
	if name, known := names[kind.Name][n]; known {
		return name
	}
	return strconv.Itoa(int(n))
}

// number reads a value of the types that are numbers with names.
func number(kind Type, d Data) uint32 {
	switch {
	case kind.Bytes == 1:
		return uint32(d[0])
	case kind == nftables.TypeEtherType:
		return uint32(binary.BigEndian.Uint16(d))
	case kind.Bytes == 2:
		return uint32(binary.NativeEndian.Uint16(d))
	}
	return binary.NativeEndian.Uint32(d)
}

// names are nft's names of numbers.
var names = map[string]map[uint32]string{
	nftables.TypeInetProto.Name: {
		unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp", unix.IPPROTO_ICMP: "icmp",
		unix.IPPROTO_ICMPV6: "ipv6-icmp",
	},
	nftables.TypeEtherType.Name: {unix.ETH_P_IP: "ip", unix.ETH_P_IPV6: "ip6", unix.ETH_P_ARP: "arp"},
	nftables.TypeARPHRD.Name:    {unix.ARPHRD_LOOPBACK: "loopback"},
	nftables.TypeFIBAddr.Name:   {unix.RTN_LOCAL: "local"},
	nftables.TypeCTState.Name:   {ctNew: "new", ctInvalid: "invalid", expr.CtStateBitRELATED: "related"},
	nftables.TypeCTDir.Name:     {directionReply: "reply"},
	nftables.TypeCTStatus.Name:  {ctDNAT: "dnat"},
}

// Proto returns the IP protocol number of TCP, UDP or SCTP in any letter
// case; 0 for another name.
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
