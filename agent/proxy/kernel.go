package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
	cfg   *Config
	conn  *nftables.Conn
	table *nftables.Table

	addresses family        // by address . protocol . port
	nodePorts family        // by protocol . port
	hairpin   *nftables.Set // address pairs of pods that may be their own backend
	listeners *nftables.Set // where parts of the cluster listen : the same
	gossip    *nftables.Set // where the gossip listens
}

// sets are the sets that are always there.
func (k *kernel) sets() []*nftables.Set {
	return append(append(k.addresses.sets(), k.nodePorts.sets()...), k.hairpin, k.listeners, k.gossip)
}

func newKernel(cfg *Config) (*kernel, error) {
	c, err := nft.Open()
	if err != nil {
		return nil, err
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: cfg.Table}
	set := func(name string, key, data nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: t, ID: nft.SetID(), Name: name, Concatenation: true, KeyType: key, DataType: data, IsMap: data.Name != ""}
	}
	none := nftables.SetDatatype{}
	k := &kernel{
		cfg: cfg, conn: c, table: t,
		hairpin:   set("hairpin", nft.TypeAddrPair, none),
		listeners: set("listeners", nft.TypeAddrProtoPort, nft.TypeTarget),
		gossip:    set("gossip", nft.TypeAddrProtoPort, none),
	}
	k.addresses = family{
		key: nft.AddrProtoPort(), parts: 3, own: set("services", nft.TypeAddrProtoPort, nftables.TypeVerdict),
		target: set("backends", nft.TypeAddrProtoPortNumber, nft.TypeTarget), masked: set("masquerade", nft.TypeAddrProtoPort, none),
	}
	k.nodePorts = family{
		name: "node-port-", key: nft.ProtoPort(), parts: 2, own: set("node-ports", nft.TypeProtoPort, nftables.TypeVerdict),
		target: set("node-port-backends", nft.TypeProtoPortNumber, nft.TypeTarget),
	}
	for _, f := range []*family{&k.addresses, &k.nodePorts} {
		f.plain, f.of = set(f.name+"plain", f.own.KeyType, none), map[class]*nftables.Set{}
		for _, c := range classes {
			f.of[c] = set(f.name+c.String(), f.own.KeyType, none)
		}
	}
	return k, nil
}

func (k *kernel) close() { _ = k.conn.CloseLasting() }

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

var loopback = netip.MustParsePrefix("127.0.0.0/8")

// hooks names the base chains.
var hooks = []string{"prerouting", "output", "postrouting", "refuse-prerouting", "refuse-output", "guard-forward", "guard-input"}

// ownChains names the other chains that are always there.
func (k *kernel) ownChains() []string {
	names := []string{"dispatch", "refuse", chainReject, chainDrop, chainGossip}
	for _, f := range []*family{&k.addresses, &k.nodePorts} {
		names = append(names, f.name+"plain")
		names = append(names, f.picks()...)
	}
	return names
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
	for _, s := range k.sets() {
		if err := k.conn.AddSet(s, nil); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	for _, c := range k.ownChains() {
		k.conn.AddChain(k.chain(c))
		k.conn.FlushChain(k.chain(c))
	}
	k.rule(chainReject, nft.Mark(markReject))
	k.rule(chainDrop, nft.Drop())
	k.rule("refuse", nft.Unmark(markReject))
	k.rule("refuse", nft.ProtoIs(unix.IPPROTO_TCP), nft.RejectTCP())
	k.rule("refuse", nft.RejectICMP())
	k.addDispatch()
	k.addClasses(&k.addresses)
	k.addClasses(&k.nodePorts)

	k.hook("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest)
	k.rule("prerouting", nft.Goto("dispatch"))
	k.hook("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, *nftables.ChainPriorityNATDest)
	k.rule("output", nft.Goto("dispatch"))

	k.hook("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource-1)
	k.rule("postrouting", nft.Marked(markMasquerade), nft.Unmark(markMasquerade), nft.Masquerade())
	k.rule("postrouting", nft.AddrPair(), nft.In(k.hairpin, false), nft.Masquerade())

	k.addGuard()

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

// addGuard keeps pods, and whoever comes by a Service, from the gossip of this
// node and of others: who gets there from another node has that node's address,
// by which the gossip counts its streams. Packets of flows that began are not
// looked at.
func (k *kernel) addGuard() {
	k.rule(chainGossip, nft.Redirected(), nft.Drop())
	for _, c := range k.cfg.ClusterCIDRs {
		if c.Addr().Is4() {
			k.rule(chainGossip, nft.SaddrIn(c, false), nft.Drop())
		}
	}
	for name, hook := range map[string]*nftables.ChainHook{
		"guard-forward": nftables.ChainHookForward, "guard-input": nftables.ChainHookInput,
	} {
		k.hook(name, nftables.ChainTypeFilter, hook, *nftables.ChainPriorityFilter)
		k.rule(name, nft.New(), k.addresses.key, nft.In(k.gossip, false), nft.Goto(chainGossip))
	}
}

// addDispatch finds a Service by destination.
func (k *kernel) addDispatch() {
	// Whatever Services say, nobody takes the place of the agent's DNS or of
	// what the nodes and the API listen on. The latter is decided for all chains
	// that follow, those of host ports too: a flow has its destination once.
	for _, a := range k.cfg.DNS {
		if a.Is4() {
			k.rule("dispatch", nft.DaddrIn(netip.PrefixFrom(a, 32), false), nft.Return())
		}
	}
	k.rule("dispatch", k.addresses.key, nft.Target(k.listeners), nft.DNAT())
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
	// NodePorts first: the cluster gave them out, and on an address of the node
	// no Service that has the address otherwise gets them.
	f := &k.nodePorts
	here := nft.Rule(nft.DaddrIn(loopback, true), nft.ToLocal())
	k.rule("dispatch", f.key, nft.In(f.plain, false), here, nft.Goto(f.name+"plain"))
	k.rule("dispatch", here, f.key, nft.Vmap(f.own))
	f = &k.addresses
	k.rule("dispatch", f.key, nft.In(f.plain, false), nft.Goto(f.name+"plain"))
	k.rule("dispatch", f.key, nft.Vmap(f.own))
}

// change is what one transaction does.
type change struct {
	delElems   []elem
	addElems   map[elem]string // the chain to go to
	delRoutes  []route
	addRoutes  []route
	delTargets []slot
	addTargets map[slot]netip.AddrPort
	delChains  []string
	addChains  map[string]chain // new or to be refilled
	delSets    []string
	addSets    map[string]time.Duration
	delPairs   []netip.Addr
	addPairs   []netip.Addr
	own        guarded // where parts of the cluster listen
	gossip     guarded // where the gossip does
	after      func()  // brings the state up to date once the kernel has taken the change
}

func (c *change) empty() bool {
	return len(c.delElems)+len(c.addElems)+len(c.delRoutes)+len(c.addRoutes)+len(c.delTargets)+len(c.addTargets)+
		len(c.delChains)+len(c.addChains)+len(c.delSets)+len(c.addSets)+len(c.delPairs)+len(c.addPairs)+c.own.len()+c.gossip.len() == 0
}

// queue adds a change to the transaction, in the order that keeps every
// reference valid: elements go first and come last, chains are emptied before
// any is deleted.
func (k *kernel) queue(c *change) error {
	m := &maker{conn: k.conn, table: k.table}
	m.check(k.delElements(c))
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
	m.check(k.addElements(c))
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

// elements gathers elements by set.
type elements map[*nftables.Set][]nftables.SetElement

func (els elements) add(s *nftables.Set, e nftables.SetElement) { els[s] = append(els[s], e) }

func (els elements) addRoute(f *family, r route) {
	els.add(f.plain, nftables.SetElement{Key: r.key()})
	els.add(f.of[r.class], nftables.SetElement{Key: r.key()})
	if r.masquerade && f.masked != nil {
		els.add(f.masked, nftables.SetElement{Key: r.key()})
	}
}

func (els elements) addPairs(s *nftables.Set, addrs []netip.Addr) {
	for _, a := range addrs {
		els.add(s, nftables.SetElement{Key: nft.KeyAddrPair(a, a)})
	}
}

func (els elements) addGuarded(s *nftables.Set, list []netip.AddrPort) {
	for _, ap := range list {
		for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			e := nftables.SetElement{Key: nft.KeyAddrProtoPort(ap.Addr(), proto, ap.Port())}
			if s.IsMap {
				e.Val = nft.ValTarget(ap)
			}
			els.add(s, e)
		}
	}
}

func (k *kernel) delElements(c *change) error {
	els := elements{}
	for _, e := range c.delElems {
		els.add(k.family(e).own, nftables.SetElement{Key: e.key()})
	}
	for _, r := range c.delRoutes {
		els.addRoute(k.family(r.elem), r)
	}
	for _, s := range c.delTargets {
		els.add(k.family(s.elem).target, nftables.SetElement{Key: s.key()})
	}
	els.addPairs(k.hairpin, c.delPairs)
	els.addGuarded(k.listeners, c.own.gone)
	els.addGuarded(k.gossip, c.gossip.gone)
	return els.each(k.conn.SetDeleteElements)
}

func (k *kernel) addElements(c *change) error {
	els := elements{}
	for e, to := range c.addElems {
		els.add(k.family(e).own, nftables.SetElement{Key: e.key(), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: to}})
	}
	for _, r := range c.addRoutes {
		els.addRoute(k.family(r.elem), r)
	}
	for s, to := range c.addTargets {
		els.add(k.family(s.elem).target, nftables.SetElement{Key: s.key(), Val: nft.ValTarget(to)})
	}
	els.addPairs(k.hairpin, c.addPairs)
	els.addGuarded(k.listeners, c.own.come)
	els.addGuarded(k.gossip, c.gossip.come)
	return els.each(k.conn.SetAddElements)
}

func (k *kernel) family(e elem) *family {
	if e.addr.IsValid() {
		return &k.addresses
	}
	return &k.nodePorts
}

func (e elem) key() []byte {
	if e.addr.IsValid() {
		return nft.KeyAddrProtoPort(e.addr, e.proto, e.port)
	}
	return nft.KeyProtoPort(e.proto, e.port)
}

func (s slot) key() []byte { return append(s.elem.key(), native(s.index)...) }

// elementsMost is how many elements go in one message, whose attributes'
// lengths have 16 bits.
const elementsMost = 400

func (els elements) each(do func(*nftables.Set, []nftables.SetElement) error) error {
	for set, list := range els {
		for part := range slices.Chunk(list, elementsMost) {
			if err := do(set, part); err != nil {
				return fmt.Errorf("elements of %s: %w", set.Name, err)
			}
		}
	}
	return nil
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
	for _, s := range k.sets() {
		k.conn.FlushSet(s)
	}
	var stale []string
	base := append(k.ownChains(), hooks...)
	for _, c := range chains {
		if c.Table.Name == k.table.Name && !slices.Contains(base, c.Name) {
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
