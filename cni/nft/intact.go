package nft

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Intact tells whether a table is there, and still the one that Reset made: it is not
// if somebody deleted it, also if he made one of the same name since (a ruleset that
// was saved earlier and is loaded again).
func (c *Conn) Intact(t Table) bool {
	handle, err := c.identify(t)
	return err == nil && (c.made[t] == 0 || c.made[t] == handle)
}

// remember keeps which tables were reset.
func (c *Conn) remember(list []Objects) {
	if c.made == nil {
		c.made = map[Table]uint64{}
	}
	for _, o := range list {
		handle, err := c.identify(o.Table)
		if err != nil {
			handle = 0 // it has gone by now; who looks finds out
		}
		c.made[o.Table] = handle
	}
}

// tableHandle is NFTA_TABLE_HANDLE (linux/netfilter/nf_tables.h).
const tableHandle = 4

// identify returns a table's handle, a number that the kernel gives no other table of
// this network namespace.
func (c *Conn) identify(t Table) (uint64, error) {
	answers, err := c.ask(t, unix.NFT_MSG_GETTABLE, 0, attribute{unix.NFTA_TABLE_NAME, t.Name})
	if err != nil {
		return 0, fmt.Errorf("nftables table %s: %w", t, err)
	}
	for _, m := range answers {
		d, err := decode(m.Data)
		if err != nil {
			return 0, fmt.Errorf("nftables table %s: %w", t, err)
		}
		for d.Next() {
			if d.Type() == tableHandle {
				return d.Uint64(), d.Err()
			}
		}
	}
	return 0, fmt.Errorf("nftables table %s: the kernel does not tell its handle", t)
}
