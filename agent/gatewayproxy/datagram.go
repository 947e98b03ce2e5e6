package gatewayproxy

import (
	"errors"
	"net"
	"net/netip"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// flow is a client of datagrams with the address that it sends them to: answers come from
// there, or the client would not take them for such.
type flow struct {
	client netip.AddrPort
	local  netip.Addr
}

// datagrams reads and writes those of a socket that is bound to no address, with the
// address of this node that each is sent to (IPV6_PKTINFO, RFC 3542; IP_PKTINFO, ip(7)).
type datagrams struct {
	*net.UDPConn
	four bool // the socket is one of IPv4 alone
}

func newDatagrams(c net.PacketConn) (*datagrams, error) {
	u, ok := c.(*net.UDPConn)
	if !ok {
		return nil, errors.New("it is no socket of UDP")
	}
	local, _ := c.LocalAddr().(*net.UDPAddr)
	d := &datagrams{UDPConn: u, four: local != nil && local.IP.To4() != nil}
	if d.four {
		return d, ipv4.NewPacketConn(u).SetControlMessage(ipv4.FlagDst, true)
	}
	return d, ipv6.NewPacketConn(u).SetControlMessage(ipv6.FlagDst, true)
}

func (d *datagrams) read(b []byte) (int, flow, error) {
	var oob [128]byte
	n, no, _, from, err := d.ReadMsgUDPAddrPort(b, oob[:])
	if err != nil {
		return 0, flow{}, err
	}
	f := flow{client: from}
	var to net.IP
	if d.four {
		var m ipv4.ControlMessage
		if m.Parse(oob[:no]) == nil {
			to = m.Dst
		}
	} else {
		var m ipv6.ControlMessage
		if m.Parse(oob[:no]) == nil {
			to = m.Dst
		}
	}
	f.local, _ = netip.AddrFromSlice(to)
	return n, f, nil
}

func (d *datagrams) write(b []byte, f flow) error {
	var oob []byte
	switch {
	case !f.local.IsValid():
	case d.four:
		oob = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: f.local.Unmap().As4()})
	default: // also of IPv4, as the socket has it
		oob = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: f.local.As16()})
	}
	_, _, err := d.WriteMsgUDPAddrPort(b, oob, f.client)
	return err
}
