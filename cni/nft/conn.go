package nft

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Conn changes and reads the nftables of this network namespace. One goroutine
// at a time uses it.
type Conn struct {
	nl   *nftables.Conn   // nil after a failure, which may have left messages in it
	made map[Table]uint64 // handles of those that were reset
	asks *netlink.Conn    // for questions, from the first on
}

// socketBuffer lets a transaction of some thousand messages and the kernel's
// acknowledgement of each pass; it is a limit, not an allocation.
const socketBuffer = 64 << 20

// Open returns a lasting connection.
func Open() (*Conn, error) {
	c := &Conn{}
	return c, c.open()
}

func (c *Conn) open() error {
	if c.nl != nil {
		return nil
	}
	nl, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		if err := c.SetReadBuffer(socketBuffer); err != nil {
			return err
		}
		return c.SetWriteBuffer(socketBuffer)
	}))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	c.nl = nl
	return nil
}

// Close ends the connection.
func (c *Conn) Close() {
	if c.nl != nil {
		_ = c.nl.CloseLasting()
		c.nl = nil
	}
	if c.asks != nil {
		_ = c.asks.Close()
		c.asks = nil
	}
}

// lastSetID starts above the ids that google/nftables counts without a lock.
var lastSetID atomic.Uint32

// setID returns an id for a set within one transaction, unique in this process.
func setID() uint32 { return 1<<20 + lastSetID.Add(1) }

// handle is the table as the library has it.
func (t Table) handle() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamily(t.Family), Name: t.Name}
}

// Elements reads a set's elements: data by key, both as Data.
func (c *Conn) Elements(t Table, s *Set) (map[string]string, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	have, err := c.nl.GetSetElements(&nftables.Set{Table: t.handle(), Name: s.Name})
	if err != nil {
		return nil, fmt.Errorf("read nftables set %s of table %s: %w", s.Name, t, err)
	}
	out := make(map[string]string, len(have))
	for _, e := range have {
		out[string(e.Key)] = string(e.Val)
	}
	return out, nil
}

// Apply makes changes, of which each knows its table, in one transaction.
func (c *Conn) Apply(changes ...Change) error {
	return c.commit(tables(changes, func(ch Change) Table { return ch.Add.Table }), func(tx *transaction) error {
		for _, ch := range changes {
			if err := tx.change(ch); err != nil {
				return err
			}
		}
		return nil
	})
}

// Reset makes tables what they are to be, whatever they hold or whether they are
// there, in one transaction. Only elements of sets that keep theirs stay.
func (c *Conn) Reset(want ...Objects) error {
	err := c.commit(tables(want, func(o Objects) Table { return o.Table }), func(tx *transaction) error {
		for _, o := range want {
			if err := tx.reset(o); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		c.remember(want)
	}
	return err
}

// Delete deletes tables, each if it is there.
func (c *Conn) Delete(list ...Table) error {
	for _, t := range list {
		err := c.commit(t.String(), func(tx *transaction) error {
			tx.nl.DelTable(t.handle())
			return nil
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete: %w", err)
		}
		delete(c.made, t)
	}
	return nil
}

// commit sends what queue has gathered.
func (c *Conn) commit(what string, queue func(*transaction) error) error {
	if err := c.open(); err != nil {
		return err
	}
	err := queue(&transaction{c.nl})
	if err == nil {
		err = c.nl.Flush()
	}
	if err != nil {
		c.Close() // what was queued, or is still to be read, must not meet the next transaction
		return fmt.Errorf("nftables table %s: %w", what, err)
	}
	return nil
}

func tables[T any](list []T, table func(T) Table) string {
	names := make([]string, len(list))
	for i, x := range list {
		names[i] = table(x).String()
	}
	return strings.Join(names, ", ")
}
