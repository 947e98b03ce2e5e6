package nft

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
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
	case kind == nftables.TypeInetProto:
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
	nftables.TypeInetProto.Name: {unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"},
	nftables.TypeEtherType.Name: {unix.ETH_P_IP: "ip", unix.ETH_P_IPV6: "ip6", unix.ETH_P_ARP: "arp"},
	nftables.TypeARPHRD.Name:    {unix.ARPHRD_LOOPBACK: "loopback"},
	nftables.TypeFIBAddr.Name:   {unix.RTN_LOCAL: "local"},
	nftables.TypeCTState.Name:   {ctNew: "new", ctInvalid: "invalid"},
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
