package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Flow is one in the direction of its first packet.
type Flow struct {
	Proto uint8
	To    netip.AddrPort // where that packet was sent to
	By    netip.AddrPort // who answers it, which is where it was led to
}

// Messages of nfnetlink_conntrack.h and the size of their header, nfgenmsg.
const (
	get    = 1
	remove = 2
	header = 4
)

func message(what uint16, flags netlink.HeaderFlags, family uint8, attributes []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | what),
			Flags: netlink.Request | flags,
		},
		Data: append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attributes...),
	}
}

// End ends the flows of a family (AF_INET, AF_INET6) that match, in this thread's network.
func End(family uint8, match func(Flow) bool) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	defer c.Close()
	list, err := c.Execute(message(get, netlink.Dump, family, nil))
	if err != nil {
		return fmt.Errorf("conntrack: list: %w", err)
	}
	var errs []error
	for _, m := range list {
		f, err := parse(m.Data)
		if err != nil {
			errs = append(errs, fmt.Errorf("conntrack: an entry of the list: %w", err))
			continue
		}
		if !match(f) {
			continue
		}
		// All that tells of a flow tells which one it is, its number too.
		_, err = c.Execute(message(remove, netlink.Acknowledge, family, m.Data[header:]))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("conntrack: end the flow to %s at %s: %w", f.To, f.By, err))
		}
	}
	return errors.Join(errs...)
}

// Attributes of nfnetlink_conntrack.h.
const (
	tupleOriginal, tupleReply     = 1, 2
	tupleAddresses, tupleProto    = 1, 2
	source4, target4              = 1, 2
	source6, target6              = 3, 4
	protoNumber, sourceAt, thatAt = 1, 2, 3
)

var errShort = errors.New("too short")

// parse reads an entry of the list; what it does not know it leaves out.
func parse(data []byte) (f Flow, err error) {
	if len(data) < header {
		return f, errShort
	}
	d, err := netlink.NewAttributeDecoder(data[header:])
	if err != nil {
		return f, err
	}
	var there, back tuple
	for d.Next() {
		switch d.Type() {
		case tupleOriginal:
			d.Nested(there.read)
		case tupleReply:
			d.Nested(back.read)
		}
	}
	return Flow{there.proto, there.to, back.from}, d.Err()
}

// tuple is one direction of a flow.
type tuple struct {
	proto    uint8
	from, to netip.AddrPort
}

func (t *tuple) read(d *netlink.AttributeDecoder) error {
	var from, to netip.Addr
	var fromPort, toPort uint16
	for d.Next() {
		switch d.Type() {
		case tupleAddresses:
			d.Nested(func(d *netlink.AttributeDecoder) error {
				for d.Next() {
					a, _ := netip.AddrFromSlice(d.Bytes())
					switch d.Type() {
					case source4, source6:
						from = a
					case target4, target6:
						to = a
					}
				}
				return nil
			})
		case tupleProto:
			d.Nested(func(d *netlink.AttributeDecoder) error {
				d.ByteOrder = binary.BigEndian
				for d.Next() {
					switch d.Type() {
					case protoNumber:
						t.proto = d.Uint8()
					case sourceAt:
						fromPort = d.Uint16()
					case thatAt:
						toPort = d.Uint16()
					}
				}
				return nil
			})
		}
	}
	t.from, t.to = netip.AddrPortFrom(from, fromPort), netip.AddrPortFrom(to, toPort)
	return nil
}
