package proxy

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/nft"
)

// Bits of the packet mark, between two hooks of one packet.
const (
	markMasquerade = 0x4000
	markReject     = 0x8000
)

// table is the table in nftables, for one address family: doc.go draws it.
type table struct {
	nft.Table
	addresses index    // by address . protocol . port
	nodePorts index    // by protocol . port
	hairpin   *nft.Set // address pairs of pods that may be their own backend
	listeners *nft.Set // where parts of the cluster listen : the same
	gossip    *nft.Set // where the gossip listens
}

func newTable(name string, f nft.Family) *table {
	listener := f.AddrProtoPort()
	t := &table{
		Table:     nft.Table{Family: f, Name: name},
		addresses: newIndex("", listener, f, "services", "backends"),
		nodePorts: newIndex("node-port-", nft.ProtoPort(), f, "node-ports", "node-port-backends"),
		hairpin:   &nft.Set{Name: "hairpin", Key: f.AddrPair().Type()},
		listeners: &nft.Set{Name: "listeners", Key: listener.Type(), Data: f.Target()},
		gossip:    &nft.Set{Name: "gossip", Key: listener.Type()},
	}
	t.addresses.masked = &nft.Set{Name: "masqueraded", Key: listener.Type()}
	return t
}

func newIndex(name string, key nft.Key, f nft.Family, own, target string) index {
	x := index{
		name: name, key: key, of: map[class]*nft.Set{},
		own:    &nft.Set{Name: own, Key: key.Type(), Data: nft.Verdict},
		plain:  &nft.Set{Name: name + "plain", Key: key.Type()},
		target: &nft.Set{Name: target, Key: key.And(nft.Random(1)).Type(), Data: f.Target()},
	}
	for _, c := range classes {
		x.of[c] = &nft.Set{Name: name + c.String(), Key: key.Type()}
	}
	return x
}

// has tells whether an address is of the table's family.
func (t *table) has(a netip.Addr) bool { return nft.FamilyOf(a) == t.Family }

// only are the ranges of the table's family.
func (t *table) only(p cidr.Prefixes) cidr.Prefixes {
	if t.Family == nft.V6 {
		return p.V6()
	}
	return p.V4()
}

var (
	loopbacks = map[nft.Family]netip.Prefix{
		nft.V4: netip.MustParsePrefix("127.0.0.0/8"),
		nft.V6: netip.MustParsePrefix("::1/128"),
	}
	localhosts = map[nft.Family]netip.Addr{
		nft.V4: netip.MustParseAddr("127.0.0.1"),
		nft.V6: netip.IPv6Loopback(),
	}
)

// base is what is the same for all Services.
func (t *table) base(cfg *Config) nft.Objects {
	o := nft.NewObjects(t.Table)
	o.AddSets(t.addresses.sets()...)
	o.AddSets(t.nodePorts.sets()...)
	o.AddSets(t.hairpin, t.listeners, t.gossip)
	o.AddRule(chainReject, nft.Mark(markReject))
	o.AddRule(chainDrop, nft.Drop())
	o.AddRule("refuse", nft.Unmark(markReject))
	o.AddRule("refuse", nft.ProtoIs(unix.IPPROTO_TCP), nft.RejectTCP())
	if t.Family == nft.V4 {
		o.AddRule("refuse", nft.ProtoIs(unix.IPPROTO_SCTP), nft.RejectProtocol())
	}
	o.AddRule("refuse", t.Family.Reject())
	t.addDispatch(o, cfg)
	t.addClasses(o, &t.addresses)
	t.addClasses(o, &t.nodePorts)

	for name, at := range map[string]nft.Point{"prerouting": nft.Prerouting, "output": nft.Output} {
		o.AddChain(name, nft.Hook{Kind: nft.NAT, At: at, Priority: nft.PriorityDstNAT})
		o.AddRule(name, nft.Goto("dispatch"))
	}
	o.AddChain("postrouting", nft.Hook{Kind: nft.NAT, At: nft.Postrouting, Priority: nft.PrioritySrcNAT - 1})
	o.AddRule("postrouting", nft.Marked(markMasquerade), nft.Unmark(markMasquerade), nft.Masquerade())
	o.AddRule("postrouting", nft.In(t.Family.AddrPair(), t.hairpin), nft.Masquerade())
	t.addGuard(o, cfg)
	t.addRefusal(o, cfg)
	return o
}

// addRefusal refuses, right after the destination was to be rewritten, what still
// goes to a Service address: it has no backend.
func (t *table) addRefusal(o nft.Objects, cfg *Config) {
	for name, at := range map[string]nft.Point{"refuse-prerouting": nft.Prerouting, "refuse-output": nft.Output} {
		o.AddChain(name, nft.Hook{Kind: nft.Filter, At: at, Priority: nft.PriorityDstNAT + 10})
		o.AddRule(name, nft.Marked(markReject), nft.Goto("refuse"))
		for _, p := range t.only(cfg.ServiceCIDRs) {
			o.AddRule(name, nft.DaddrIn(p), nft.New(), nft.NotToLocal(), nft.Goto("refuse"))
		}
	}
}

// addGuard keeps pods, and whoever comes by a Service, from the gossip of this
// node and of others: who gets there from another node has that node's address,
// by which the gossip counts its streams. Packets of flows that began are not
// looked at.
//
// What belongs to no flow as conntrack sees it keeps the address that it came
// with: a pod that is sent such a packet would reset its connection to a Service.
// It is not forwarded from or to pods.
func (t *table) addGuard(o nft.Objects, cfg *Config) {
	o.AddRule(chainGossip, nft.Redirected(), nft.Drop())
	for _, c := range t.only(cfg.ClusterCIDRs) {
		o.AddRule(chainGossip, nft.SaddrIn(c), nft.Drop())
	}
	for _, c := range t.only(cfg.ClusterCIDRs) {
		o.AddRule(chainInvalid, nft.SaddrIn(c), nft.Drop())
		o.AddRule(chainInvalid, nft.DaddrIn(c), nft.Drop())
	}
	for name, at := range map[string]nft.Point{"guard-forward": nft.Forward, "guard-input": nft.Input} {
		o.AddChain(name, nft.Hook{Kind: nft.Filter, At: at, Priority: nft.PriorityFilter})
		o.AddRule(name, nft.New(), nft.In(t.addresses.key, t.gossip), nft.Goto(chainGossip))
	}
	if len(t.only(cfg.ClusterCIDRs)) > 0 {
		o.AddRule("guard-forward", nft.Invalid(), nft.Goto(chainInvalid))
	}
}

// addDispatch finds a Service by destination.
func (t *table) addDispatch(o nft.Objects, cfg *Config) {
	rule := func(r ...nft.Statement) { o.AddRule("dispatch", r...) }
	// Whatever Services say, nobody takes the place of the agent's DNS or of
	// what the nodes and the API listen on. The latter is decided for all chains
	// that follow, those of host ports too: a flow has its destination once.
	for _, a := range cfg.DNS {
		if t.has(a) {
			rule(nft.DaddrIs(a), nft.Return())
		}
	}
	rule(t.Family.DNAT(t.addresses.key, t.listeners))
	t.addReturn(rule, cfg)
	// NodePorts first: the cluster gave them out, and on an address of the node
	// no Service that has the address otherwise gets them.
	x := &t.nodePorts
	for _, at := range t.nodePortAddresses(cfg) {
		rule(slices.Concat(nft.Rule{nft.In(x.key, x.plain)}, at, nft.Rule{nft.Goto(x.plainChain())})...)
		rule(slices.Concat(at, nft.Rule{nft.Vmap(x.key, x.own)})...)
	}
	x = &t.addresses
	rule(nft.In(x.key, x.plain), nft.Goto(x.plainChain()))
	rule(nft.Vmap(x.key, x.own))
}

// nodePortAddresses are the conditions, of which one is to hold, for a packet to an
// address of the node on which NodePorts answer. The loopback addresses are none.
func (t *table) nodePortAddresses(cfg *Config) (out []nft.Rule) {
	away := nft.DaddrNotIn(loopbacks[t.Family])
	ranges := narrowed(t.only(cfg.NodePorts))
	if ranges == nil {
		return []nft.Rule{{away, nft.ToLocal()}}
	}
	for _, p := range ranges {
		out = append(out, nft.Rule{away, nft.DaddrIn(p), nft.ToLocal()})
	}
	return out
}

// addReturn marks what clients outside the pod network send to Services that was
// routed here: the answer must come back this way.
func (t *table) addReturn(rule func(...nft.Statement), cfg *Config) {
	for _, p := range t.only(cfg.ServiceCIDRs) {
		outside := nft.Rule{nft.DaddrIn(p)}
		for _, c := range t.only(cfg.ClusterCIDRs) {
			outside = append(outside, nft.SaddrNotIn(c))
		}
		rule(append(outside, nft.NotToLocal(), nft.Mark(markMasquerade))...) // the cluster DNS is on this node
	}
}

// addGuarded adds where something listens, by every protocol.
func addGuarded(o nft.Objects, s *nft.Set, list []netip.AddrPort) {
	for _, ap := range list {
		for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			o.Add(s, nft.AddrProtoPort(ap.Addr(), proto, ap.Port()), nft.Target(ap))
		}
	}
}
