package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Intact tells whether a table is there, and still the one that Reset made: it is not
// if somebody deleted it, also if he made one of the same name since (a ruleset that
// was saved earlier and is loaded again).
func (c *Conn) Intact(t Table) bool {
	handle, err := identify(t)
	return err == nil && (c.made[t] == 0 || c.made[t] == handle)
}

// remember keeps which tables were reset.
func (c *Conn) remember(list []Objects) {
	if c.made == nil {
		c.made = map[Table]uint64{}
	}
	for _, o := range list {
		handle, err := identify(o.Table)
		if err != nil {
			handle = 0 // it has gone by now; who looks finds out
		}
		c.made[o.Table] = handle
	}
}

// identify returns a table's handle, a number that the kernel gives no other table of
// this network namespace (linux/netfilter/nf_tables.h, NFTA_TABLE_HANDLE).
func identify(t Table) (uint64, error) {
	nl, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, fmt.Errorf("open nftables: %w", err)
	}
	defer nl.Close()
	ask := netlink.NewAttributeEncoder()
	ask.String(unix.NFTA_TABLE_NAME, t.Name)
	name, err := ask.Encode()
	if err != nil {
		return 0, err
	}
	// struct nfgenmsg: family, version, resource id.
	answers, err := nl.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETTABLE),
			Flags: netlink.Request | netlink.Acknowledge,
		},
		Data: append([]byte{byte(t.Family), unix.NFNETLINK_V0, 0, 0}, name...),
	})
	if err != nil {
		return 0, fmt.Errorf("nftables table %s: %w", t, err)
	}
	for _, m := range answers {
		if len(m.Data) < genHeader {
			continue
		}
		d, err := netlink.NewAttributeDecoder(m.Data[genHeader:])
		if err != nil {
			return 0, fmt.Errorf("nftables table %s: %w", t, err)
		}
		for d.ByteOrder = binary.BigEndian; d.Next(); {
			if d.Type() == tableHandle {
				return d.Uint64(), d.Err()
			}
		}
	}
	return 0, fmt.Errorf("nftables table %s: the kernel does not tell its handle", t)
}

const (
	genHeader   = 4 // bytes of struct nfgenmsg
	tableHandle = 4 // NFTA_TABLE_HANDLE (linux/netfilter/nf_tables.h)
)
