package dns

import (
	"slices"
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

// clients holds each client's count of packets, by family.
var clients = map[nft.Family]*nft.Set{nft.V4: newClients(nft.V4), nft.V6: newClients(nft.V6)}

func newClients(f nft.Family) *nft.Set {
	return &nft.Set{Name: "clients", Key: nft.Key{f.Saddr()}.Type(), Timeout: meterMemory, Size: meterClients}
}

// meter limits each client in the kernel, with one nftables table for each family that
// the server has an address of.
func (s *Server) meter() error {
	if s.cfg.Table == "" {
		return nil
	}
	c, err := nft.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	var all []nft.Objects
	for _, t := range s.meters() {
		all = append(all, s.metered(t))
	}
	if err := c.Reset(all...); err != nil {
		return err
	}
	s.rules = c // closed, it knows its tables still
	return nil
}

// unlessMetered is meter where somebody took a table away.
func (s *Server) unlessMetered() error {
	if s.rules == nil {
		return nil // there was none, which was told
	}
	for _, t := range s.meters() {
		if !s.rules.Intact(t) {
			return s.meter()
		}
	}
	return nil
}

// metered is a table: it meets packets before they are tracked.
func (s *Server) metered(t nft.Table) nft.Objects {
	o := nft.NewObjects(t)
	o.AddSets(clients[t.Family])
	o.AddChain("prerouting", nft.Hook{Kind: nft.Filter, At: nft.Prerouting, Priority: nft.PriorityRaw})
	over := nft.Over(nft.Key{t.Family.Saddr()}, clients[t.Family], meterRate, meterBurst)
	for _, a := range s.cfg.Addrs {
		if nft.FamilyOf(a) == o.Table.Family {
			o.AddRule("prerouting", nft.DaddrIs(a), over, nft.Drop())
		}
	}
	return o
}

func (s *Server) meters() (out []nft.Table) {
	for _, a := range s.cfg.Addrs {
		if t := (nft.Table{Family: nft.FamilyOf(a), Name: s.cfg.Table}); !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

func (s *Server) removeMeter() error {
	if s.cfg.Table == "" {
		return nil
	}
	c, err := nft.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Delete(s.meters()...)
}
