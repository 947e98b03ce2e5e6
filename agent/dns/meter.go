package dns

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nft"
)

// A client may send this many packets a second; what is more is dropped by
// the kernel, before it is tracked as a flow or fills the socket that all
// clients share. A busy pod asks for some thousand names a second at most.
const (
	meterRate    = 5000
	meterBurst   = 5000
	meterClients = 1 << 16
	meterMemory  = 10 * time.Second // how long a silent client is remembered
)

// meter limits each client in the kernel, with one nftables table.
func (s *Server) meter() error {
	if s.cfg.Table == "" {
		return nil
	}
	c, err := nft.Open()
	if err != nil {
		return err
	}
	defer func() { _ = c.CloseLasting() }()
	t := s.table()
	set := &nftables.Set{
		Table:      t,
		ID:         nft.SetID(),
		Name:       "clients",
		KeyType:    nftables.TypeIPAddr,
		Dynamic:    true,
		HasTimeout: true,
		Timeout:    meterMemory,
		Size:       meterClients,
	}
	// Added first, so that deleting what an earlier agent left cannot fail.
	c.AddTable(t)
	c.DelTable(t)
	c.AddTable(t)
	if err := c.AddSet(set, nil); err != nil {
		return fmt.Errorf("nftables set: %w", err)
	}
	chain := c.AddChain(&nftables.Chain{
		Table: t, Name: "prerouting", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	})
	for _, a := range s.cfg.Addrs {
		if !a.Is4() {
			continue
		}
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: nft.Rule(
			nft.DaddrIn(netip.PrefixFrom(a, a.BitLen()), false), nft.Saddr(), nft.Meter(set, meterRate, meterBurst), nft.Drop())})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables table %s: %w", t.Name, err)
	}
	return nil
}

func (s *Server) table() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyIPv4, Name: s.cfg.Table}
}

func (s *Server) removeMeter() error {
	if s.cfg.Table == "" {
		return nil
	}
	c, err := nft.Open()
	if err != nil {
		return err
	}
	defer func() { _ = c.CloseLasting() }()
	c.DelTable(s.table())
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete nftables table %s: %w", s.cfg.Table, err)
	}
	return nil
}
