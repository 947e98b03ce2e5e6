package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

type arpLink struct {
	answering
	client *arp.Client
	conn   *packet.Conn // the client's
	mac    MAC
	heard  func(Word)
}

func openARP(ifi *net.Interface, heard func(Word)) (*arpLink, error) {
	conn, err := packet.Listen(ifi, packet.Raw, int(ethernet.EtherTypeARP), nil)
	if err != nil {
		return nil, fmt.Errorf("listen for ARP on %s: %w", ifi.Name, err)
	}
	bound(conn)
	client, err := arp.New(ifi, conn)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("speak ARP on %s: %w", ifi.Name, err)
	}
	return &arpLink{client: client, conn: conn, mac: MAC(ifi.HardwareAddr), heard: heard}, nil
}

// bound bounds a socket's buffer.
func bound(c syscall.Conn) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
		})
	}
}

func (l *arpLink) MAC() MAC { return l.mac }

func (l *arpLink) Answer(table map[netip.Addr]MAC, until time.Time) { l.set(table, until) }

func (l *arpLink) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = l.client.Close() })
	defer stop()
	defer l.client.Close()
	for {
		p, frame, err := l.client.Read()
		if ctx.Err() != nil {
			return nil
		}
		if op := (*net.OpError)(nil); errors.As(err, &op) {
			return fmt.Errorf("hear ARP: %w", err)
		}
		if err != nil { // a packet that cannot be read
			continue
		}
		l.take(p, frame.Source)
	}
}

// take heeds only what a machine says of itself: who answers for another says nothing new.
func (l *arpLink) take(p *arp.Packet, from net.HardwareAddr) {
	if len(p.SenderHardwareAddr) != len(MAC{}) || MAC(p.SenderHardwareAddr) == l.mac {
		return
	}
	switch own := bytes.Equal(p.SenderHardwareAddr, from); {
	case !own || !p.SenderIP.IsValid():
	case !p.SenderIP.IsUnspecified():
		l.heard(Word{Addr: p.SenderIP, MAC: MAC(p.SenderHardwareAddr)})
	case p.Operation == arp.OperationRequest:
		l.heard(Word{Addr: p.TargetIP, MAC: MAC(p.SenderHardwareAddr), Asks: true})
	}
	if p.Operation != arp.OperationRequest || p.SenderIP == p.TargetIP {
		return
	}
	if mac, ok := l.of(p.TargetIP); ok {
		_ = l.send(arp.OperationReply, Word{Addr: p.TargetIP, MAC: mac}, p.SenderHardwareAddr, p.SenderIP,
			p.SenderHardwareAddr)
	}
}

// Claim sends a request and a reply, for there are machines that heed one of them only.
func (l *arpLink) Claim(a netip.Addr) error {
	for _, op := range []arp.Operation{arp.OperationRequest, arp.OperationReply} {
		if err := l.send(op, Word{Addr: a, MAC: l.mac}, ethernet.Broadcast, a, ethernet.Broadcast); err != nil {
			return err
		}
	}
	return nil
}

// Ask sends a probe, which changes nobody's table (RFC 5227, section 2.1.1).
func (l *arpLink) Ask(a netip.Addr) error {
	nobody := make(net.HardwareAddr, len(MAC{}))
	return l.send(arp.OperationRequest, Word{Addr: netip.IPv4Unspecified(), MAC: l.mac}, nobody, a, ethernet.Broadcast)
}

// send sends from this machine's MAC whatever the word is: switches learn by it where a
// machine is (the client would send from the word's).
func (l *arpLink) send(op arp.Operation, w Word, target net.HardwareAddr, ip netip.Addr, to net.HardwareAddr) error {
	p, err := arp.NewPacket(op, w.MAC[:], w.Addr, target, ip)
	if err != nil {
		return err
	}
	payload, err := p.MarshalBinary()
	if err != nil {
		return err
	}
	frame, err := (&ethernet.Frame{Destination: to, Source: l.mac[:], EtherType: ethernet.EtherTypeARP,
		Payload: payload}).MarshalBinary()
	if err != nil {
		return err
	}
	_, err = l.conn.WriteTo(frame, &packet.Addr{HardwareAddr: to})
	return err
}
