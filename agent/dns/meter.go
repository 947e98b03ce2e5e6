package dns

import (
	"time"

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

// clients holds each client's count of packets.
var clients = &nft.Set{Name: "clients", Key: nft.Key{nft.V4.Saddr()}.Type(), Timeout: meterMemory, Size: meterClients}

// meter limits each client in the kernel, with one nftables table.
func (s *Server) meter() error {
	if s.cfg.Table == "" {
		return nil
	}
	c, err := nft.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Reset(s.metered())
}

// metered is the table: it meets packets before they are tracked.
func (s *Server) metered() nft.Objects {
	o := nft.NewObjects(s.table())
	o.AddSets(clients)
	o.AddChain("prerouting", nft.Hook{Kind: nft.Filter, At: nft.Prerouting, Priority: nft.PriorityRaw})
	over := nft.Over(nft.Key{nft.V4.Saddr()}, clients, meterRate, meterBurst)
	for _, a := range s.cfg.Addrs {
		if nft.FamilyOf(a) == o.Table.Family {
			o.AddRule("prerouting", nft.DaddrIs(a), over, nft.Drop())
		}
	}
	return o
}

func (s *Server) table() nft.Table { return nft.Table{Family: nft.V4, Name: s.cfg.Table} }

func (s *Server) removeMeter() error {
	if s.cfg.Table == "" {
		return nil
	}
	c, err := nft.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Delete(s.table())
}
