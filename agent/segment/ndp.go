package segment

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/ndp"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// ndpLink hears with a socket for packets and not for ICMPv6, which would not get what
// is sent to the address itself: a neighbour that looks whether it still is there.
type ndpLink struct {
	answering
	packets *packet.Conn
	conn    *ndp.Conn
	mac     MAC
	heard   func(Word)
	groups  map[netip.Addr]bool // joined; of the one who decides
}

func openNDP(ifi *net.Interface, heard func(Word)) (*ndpLink, error) {
	conn, _, err := ndp.Listen(ifi, ndp.LinkLocal)
	if err != nil {
		return nil, fmt.Errorf("speak NDP on %s: %w", ifi.Name, err)
	}
	filter, err := bpf.Assemble(neighbours)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	packets, err := packet.Listen(ifi, packet.Raw, int(ethernet.EtherTypeIPv6), &packet.Config{Filter: filter})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for NDP on %s: %w", ifi.Name, err), conn.Close())
	}
	bound(packets)
	return &ndpLink{packets: packets, conn: conn, mac: MAC(ifi.HardwareAddr), heard: heard,
		groups: map[netip.Addr]bool{}}, nil
}

// Where things are in a frame with an IPv6 packet without extension headers, which these
// messages never have in practice.
const (
	atLength   = ethernetHeader + 4
	atNext     = ethernetHeader + 6
	atHopLimit = ethernetHeader + 7
	atSource   = ethernetHeader + 8
	atICMP     = ethernetHeader + 40

	ethernetHeader = 14

	solicitation, advertisement = 135, 136
)

// neighbours lets solicitations and advertisements of neighbours pass: with hop limit
// 255, which no router lets through (RFC 4861, section 7.1).
var neighbours = []bpf.Instruction{
	bpf.LoadAbsolute{Off: atNext, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_ICMPV6, SkipTrue: 5},
	bpf.LoadAbsolute{Off: atHopLimit, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: ndp.HopLimit, SkipTrue: 3},
	bpf.LoadAbsolute{Off: atICMP, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: solicitation, SkipTrue: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: advertisement, SkipTrue: 1},
	bpf.RetConstant{Val: 0},
	bpf.RetConstant{Val: 1500},
}

func (l *ndpLink) MAC() MAC { return l.mac }

// Answer joins the groups that questions for the addresses are sent to.
func (l *ndpLink) Answer(table map[netip.Addr]MAC, until time.Time) {
	wanted := map[netip.Addr]bool{}
	for a := range table {
		if g, err := ndp.SolicitedNodeMulticast(a); err == nil {
			wanted[g] = true
			if !l.groups[g] && l.conn.JoinGroup(g) == nil {
				l.groups[g] = true
			}
		}
	}
	for g := range l.groups {
		if !wanted[g] {
			_ = l.conn.LeaveGroup(g)
			delete(l.groups, g)
		}
	}
	l.set(table, until)
}

func (l *ndpLink) close() {
	_ = l.packets.Close()
	_ = l.conn.Close()
}

func (l *ndpLink) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, l.close)
	defer stop()
	defer l.close()
	buf := make([]byte, 1500)
	for {
		n, _, err := l.packets.ReadFrom(buf)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("hear NDP: %w", err)
		}
		l.take(buf[:n])
	}
}

func (l *ndpLink) take(frame []byte) {
	if len(frame) < atICMP+4 || MAC(frame[6:12]) == l.mac {
		return
	}
	source := netip.AddrFrom16([16]byte(frame[atSource : atSource+16]))
	size := int(binary.BigEndian.Uint16(frame[atLength:]))
	if size > len(frame)-atICMP {
		return
	}
	m, err := ndp.ParseMessage(frame[atICMP : atICMP+size])
	if err != nil {
		return
	}
	switch m := m.(type) {
	case *ndp.NeighborAdvertisement:
		if mac, ok := linkAddress(m.Options, ndp.Target); ok && mac == MAC(frame[6:12]) {
			l.heard(Word{Addr: m.TargetAddress.WithZone(""), MAC: mac})
		}
	case *ndp.NeighborSolicitation:
		if mac, ok := linkAddress(m.Options, ndp.Source); ok && mac == MAC(frame[6:12]) && isQuestion(m) {
			l.heard(Word{Addr: m.TargetAddress.WithZone(""), MAC: mac, Asks: true})
		}
		if mac, ok := l.of(m.TargetAddress.WithZone("")); ok {
			_ = l.advertise(m.TargetAddress.WithZone(""), mac, source)
		}
	}
}

// isQuestion tells Ask's solicitations from those of kernels, which ask without a nonce when
// they have something to send there: a nonce is for who looks whether an address is free
// (RFC 7527).
func isQuestion(m *ndp.NeighborSolicitation) bool {
	return slices.ContainsFunc(m.Options, func(o ndp.Option) bool {
		_, ok := o.(*ndp.Nonce)
		return ok
	})
}

func linkAddress(options []ndp.Option, which ndp.Direction) (MAC, bool) {
	for _, o := range options {
		if a, ok := o.(*ndp.LinkLayerAddress); ok && a.Direction == which && len(a.Addr) == len(MAC{}) {
			return MAC(a.Addr), true
		}
	}
	return MAC{}, false
}

var allNodes = netip.MustParseAddr("ff02::1")

// advertise tells one who asked, or all of them where it has no address yet or nobody
// asked.
func (l *ndpLink) advertise(a netip.Addr, mac MAC, to netip.Addr) error {
	solicited := to.IsValid() && !to.IsUnspecified()
	if !solicited {
		to = allNodes
	}
	return l.conn.WriteTo(&ndp.NeighborAdvertisement{
		Solicited:     solicited,
		Override:      true,
		TargetAddress: a,
		Options:       []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: mac[:]}},
	}, nil, to)
}

// Claim tells all nodes (RFC 4861, section 7.2.6).
func (l *ndpLink) Claim(a netip.Addr) error { return l.advertise(a, l.mac, netip.Addr{}) }

// Ask asks the group of those who may have the address.
func (l *ndpLink) Ask(a netip.Addr) error {
	group, err := ndp.SolicitedNodeMulticast(a)
	if err != nil {
		return err
	}
	return l.conn.WriteTo(&ndp.NeighborSolicitation{
		TargetAddress: a,
		Options:       []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: l.mac[:]}, ndp.NewNonce()},
	}, nil, group)
}
