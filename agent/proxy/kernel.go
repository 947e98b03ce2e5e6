package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nft"
)

// Bits of the packet mark, between two hooks of one packet.
const (
	markMasquerade = 0x4000
	markReject     = 0x8000
)

// kernel is the table in nftables. One goroutine uses it.
type kernel struct {
	cfg       *Config
	conn      *nftables.Conn
	table     *nftables.Table
	services  *nftables.Set // address . protocol . port : chain
	nodePorts *nftables.Set // protocol . port : chain
	hairpin   *nftables.Set // address pairs of pods that may be their own backend
}

func newKernel(cfg *Config) (*kernel, error) {
	c, err := nft.Open()
	if err != nil {
		return nil, err
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: cfg.Table}
	return &kernel{
		cfg: cfg, conn: c, table: t,
		services: &nftables.Set{
			Table: t, ID: nft.SetID(), Name: "services", IsMap: true, Concatenation: true,
			KeyType: nft.TypeAddrProtoPort, DataType: nftables.TypeVerdict,
		},
		nodePorts: &nftables.Set{
			Table: t, ID: nft.SetID(), Name: "node-ports", IsMap: true, Concatenation: true,
			KeyType: nft.TypeProtoPort, DataType: nftables.TypeVerdict,
		},
		hairpin: &nftables.Set{
			Table: t, ID: nft.SetID(), Name: "hairpin", Concatenation: true, KeyType: nft.TypeAddrPair,
		},
	}, nil
}

func (k *kernel) close() { _ = k.conn.CloseLasting() }

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

var loopback = netip.MustParsePrefix("127.0.0.0/8")

// base names the chains that are not a Service's.
var base = map[string]bool{
	"prerouting": true, "output": true, "postrouting": true, "refuse-prerouting": true, "refuse-output": true,
	"dispatch": true, "refuse": true, chainReject: true, chainDrop: true,
}

func (k *kernel) chain(name string) *nftables.Chain {
	return &nftables.Chain{Table: k.table, Name: name}
}

func (k *kernel) rule(chain string, parts ...[]expr.Any) {
	k.conn.AddRule(&nftables.Rule{Table: k.table, Chain: k.chain(chain), Exprs: nft.Rule(parts...)})
}

// hook adds a base chain, emptied.
func (k *kernel) hook(name string, kind nftables.ChainType, hook *nftables.ChainHook, prio nftables.ChainPriority) {
	k.conn.AddChain(&nftables.Chain{Table: k.table, Name: name, Type: kind, Hooknum: hook, Priority: &prio})
	k.conn.FlushChain(k.chain(name))
}

// addBase queues what is the same for all Services.
func (k *kernel) addBase() error {
	k.conn.AddTable(k.table)
	for _, s := range []*nftables.Set{k.services, k.nodePorts, k.hairpin} {
		if err := k.conn.AddSet(s, nil); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	for _, c := range []string{"dispatch", "refuse", chainReject, chainDrop} {
		k.conn.AddChain(k.chain(c))
		k.conn.FlushChain(k.chain(c))
	}
	k.rule(chainReject, nft.Mark(markReject))
	k.rule(chainDrop, nft.Drop())
	k.rule("refuse", nft.Unmark(markReject))
	k.rule("refuse", nft.ProtoIs(unix.IPPROTO_TCP), nft.RejectTCP())
	k.rule("refuse", nft.RejectICMP())
	k.addDispatch()

	k.hook("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest)
	k.rule("prerouting", nft.Goto("dispatch"))
	k.hook("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, *nftables.ChainPriorityNATDest)
	k.rule("output", nft.Goto("dispatch"))

	k.hook("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource-1)
	k.rule("postrouting", nft.Marked(markMasquerade), nft.Unmark(markMasquerade), nft.Masquerade())
	k.rule("postrouting", nft.AddrPair(), nft.In(k.hairpin, false), nft.Masquerade())

	// Right after the destination was to be rewritten: what still goes to a
	// Service address has no backend.
	for name, hook := range map[string]*nftables.ChainHook{
		"refuse-prerouting": nftables.ChainHookPrerouting, "refuse-output": nftables.ChainHookOutput,
	} {
		k.hook(name, nftables.ChainTypeFilter, hook, *nftables.ChainPriorityNATDest+10)
		k.rule(name, nft.Marked(markReject), nft.Goto("refuse"))
		for _, p := range k.cfg.ServiceCIDRs {
			if p.Addr().Is4() {
				k.rule(name, nft.DaddrIn(p, false), nft.New(), nft.NotToLocal(), nft.Goto("refuse"))
			}
		}
	}
	return nil
}

// addDispatch finds a Service by destination.
func (k *kernel) addDispatch() {
	// Clients outside the pod network that were routed here need the answer
	// to come back this way.
	for _, p := range k.cfg.ServiceCIDRs {
		if !p.Addr().Is4() {
			continue
		}
		outside := nft.DaddrIn(p, false)
		for _, c := range k.cfg.ClusterCIDRs {
			if c.Addr().Is4() {
				outside = nft.Rule(outside, nft.SaddrIn(c, true))
			}
		}
		k.rule("dispatch", outside, nft.NotToLocal(), nft.Mark(markMasquerade)) // the cluster DNS is on this node
	}
	k.rule("dispatch", nft.AddrProtoPort(), nft.Vmap(k.services))
	k.rule("dispatch", nft.DaddrIn(loopback, true), nft.ToLocal(), nft.ProtoPort(), nft.Vmap(k.nodePorts))
}

// change is what one transaction does.
type change struct {
	delElems  []elem
	addElems  map[elem]string
	delChains []string
	addChains map[string]chain // new or to be refilled
	delSets   []string
	addSets   map[string]time.Duration
	delPairs  []netip.Addr
	addPairs  []netip.Addr
	after     func() // brings the state up to date once the kernel has taken the change
}

func (c *change) empty() bool {
	return len(c.delElems)+len(c.addElems)+len(c.delChains)+len(c.addChains)+len(c.delSets)+len(c.addSets)+len(c.delPairs)+len(c.addPairs) == 0
}

// queue adds a change to the transaction, in the order that keeps every
// reference valid: elements go first and come last, chains are emptied before
// any is deleted.
func (k *kernel) queue(c *change) error {
	m := &maker{conn: k.conn, table: k.table}
	for _, e := range c.delElems {
		set, el := k.element(e, "")
		m.check(k.conn.SetDeleteElements(set, []nftables.SetElement{el}))
	}
	m.check(k.pairs(c.delPairs, k.conn.SetDeleteElements))
	for name, timeout := range c.addSets {
		m.check(k.conn.AddSet(&nftables.Set{
			Table: k.table, ID: nft.SetID(), Name: name, Dynamic: true, HasTimeout: true, Timeout: timeout,
			KeyType: nft.TypeAddrPair, Concatenation: true, Size: 65535,
		}, nil))
	}
	for name := range c.addChains {
		k.conn.AddChain(k.chain(name))
		k.conn.FlushChain(k.chain(name))
	}
	for name, ch := range c.addChains {
		for _, l := range ch {
			k.rule(name, l.make(m))
		}
	}
	for e, to := range c.addElems {
		set, el := k.element(e, to)
		m.check(k.conn.SetAddElements(set, []nftables.SetElement{el}))
	}
	m.check(k.pairs(c.addPairs, k.conn.SetAddElements))
	for _, name := range c.delChains {
		k.conn.FlushChain(k.chain(name))
	}
	for _, name := range c.delChains {
		k.conn.DelChain(k.chain(name))
	}
	for _, name := range c.delSets {
		k.conn.DelSet(&nftables.Set{Table: k.table, Name: name})
	}
	return m.err
}

func (k *kernel) element(e elem, to string) (*nftables.Set, nftables.SetElement) {
	set, el := k.nodePorts, nftables.SetElement{Key: nft.KeyProtoPort(e.proto, e.port)}
	if e.addr.IsValid() {
		set, el.Key = k.services, nft.KeyAddrProtoPort(e.addr, e.proto, e.port)
	}
	if to != "" {
		el.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: to}
	}
	return set, el
}

func (k *kernel) pairs(addrs []netip.Addr, do func(*nftables.Set, []nftables.SetElement) error) error {
	if len(addrs) == 0 {
		return nil
	}
	els := make([]nftables.SetElement, 0, len(addrs))
	for _, a := range addrs {
		els = append(els, nftables.SetElement{Key: nft.KeyAddrPair(a, a)})
	}
	return do(k.hairpin, els)
}

// reset queues the removal of all that an earlier process or a foreign hand
// left, but for the affinity sets that are still wanted. It belongs in one
// transaction with addBase before it and a change after it.
func (k *kernel) reset(want objects) error {
	chains, err := k.conn.ListChainsOfTableFamily(k.table.Family)
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	var sets []*nftables.Set
	if k.exists() {
		if sets, err = k.conn.GetSets(k.table); err != nil {
			return fmt.Errorf("list sets: %w", err)
		}
	}
	if err := k.addBase(); err != nil {
		return err
	}
	for _, s := range []*nftables.Set{k.services, k.nodePorts, k.hairpin} {
		k.conn.FlushSet(s)
	}
	var stale []string
	for _, c := range chains {
		if c.Table.Name == k.table.Name && !base[c.Name] {
			stale = append(stale, c.Name)
			k.conn.FlushChain(k.chain(c.Name))
		}
	}
	for _, name := range stale {
		k.conn.DelChain(k.chain(name))
	}
	for _, s := range sets {
		if _, ok := want.sets[s.Name]; strings.HasPrefix(s.Name, affinityPrefix) && !ok {
			k.conn.DelSet(s)
		}
	}
	return nil
}

func (k *kernel) flush() error {
	if err := k.conn.Flush(); err != nil {
		return fmt.Errorf("nftables table %s: %w", k.table.Name, err)
	}
	return nil
}

// exists tells whether the table is still there.
func (k *kernel) exists() bool {
	_, err := k.conn.ListTableOfFamily(k.table.Name, k.table.Family)
	return err == nil
}

func (k *kernel) remove() error {
	k.conn.DelTable(k.table)
	if err := k.conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete nftables table %s: %w", k.table.Name, err)
	}
	return nil
}
