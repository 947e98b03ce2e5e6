package policy

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/shoal-project/shoal/agent/policyfeed"
	"github.com/shoal-project/shoal/cni/nft"
)

// compiler keeps the tables of a node that policies ask for. It is pure: what it
// makes is read from its tables.
type compiler struct {
	log   *slog.Logger
	world *World              // with the node's own pods
	local map[PodID][]holding // the node's own pods
	// byNamespace are the world's pods.
	byNamespace map[string]map[PodID]bool
	inNamespace map[string]map[Key]*parsed
	cluster     map[string]*clusterParsed
	selectors   map[string]*selector // by id; those that a chain uses
	generation  uint64
	tables      [2]*table // by family
}

// holding is what a pod has in a table.
type holding struct {
	table  *table
	addr   netip.Addr
	chains [2]*chain // by side; nil: not isolated
}

func (h holding) isolated() bool { return h.chains[ingress] != nil || h.chains[egress] != nil }

// selector is the pods that some peers mean, as a set of addresses in each family.
type selector struct {
	peers
	id    string
	refs  int
	sets  [2]*addresses
	named map[namedPort]*named
	// among caches which namespaces are meant.
	among map[string]bool
}

type namedPort struct {
	name  string
	proto uint8
}

// named is where a selector's pods have a port of a name.
type named struct {
	namedPort
	refs int
	sets [2]*addresses
}

// addresses is a set that counts: pods that come and go may share an address for a
// moment.
type addresses struct {
	*nft.Set
	more map[string]int // beyond one
}

// table is one family's.
type table struct {
	words
	*journal
	// chains by name; recipes find the one that the same policies made before.
	chains  map[string]*chain
	recipes map[string]*chain
	// fixed are sets of blocks and ports, by name: who has the name has the content.
	fixed map[string]*fixedSet
	// owners are the pods that have the addresses.
	owners map[netip.Addr]PodID
}

// idle holds where no pod of the node is isolated: the kernel needs no table.
func (t *table) idle() bool { return len(t.Elements[t.self]) == 0 }

type fixedSet struct {
	*nft.Set
	refs int
}

// chain is what pods under the same policies share: rules, for each direction.
type chain struct {
	side    int
	names   [directions]string
	refs    int
	recipes []string
	next    *chain // where it leads to, if anywhere
	// What it uses.
	selectors []*selector
	named     []*named
	fixed     []*fixedSet
}

// families are those of the tables.
var families = [2]nft.Family{nft.V4, nft.V6}

func familyIndex(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

func newCompiler(name string, log *slog.Logger) *compiler {
	c := &compiler{
		log:         log,
		world:       NewWorld(),
		local:       map[PodID][]holding{},
		byNamespace: map[string]map[PodID]bool{},
		inNamespace: map[string]map[Key]*parsed{},
		cluster:     map[string]*clusterParsed{},
		selectors:   map[string]*selector{},
	}
	for i, f := range families {
		c.tables[i] = &table{
			words:   newWords(f),
			journal: newJournal(nft.Table{Family: f, Name: name}),
			chains:  map[string]*chain{},
			recipes: map[string]*chain{},
			fixed:   map[string]*fixedSet{},
			owners:  map[netip.Addr]PodID{},
		}
	}
	return c
}

// change brings the tables to the world as it is after d.
func (c *compiler) change(d delta) {
	d.reduce(c.world)
	c.changeNamespaces(d.namespaces)
	for id, p := range d.pods {
		c.changePod(id, p)
	}
	again := c.changePolicies(d.policies)
	if len(c.cluster) > 0 { // their subjects go by namespaces' labels
		for id := range c.local {
			if _, relabelled := d.namespaces[id.Namespace]; relabelled {
				again[id] = true
			}
		}
	}
	maps.Copy(again, c.changeCluster(d.cluster))
	for id := range d.pods {
		if id.UID != "" {
			again[id] = true
		}
	}
	for id := range again {
		c.release(id)
		if p := c.world.Pods[id]; p != nil && id.Key != clusterDNS {
			c.isolate(id, p)
		}
	}
	c.collect()
}

// changeNamespaces moves the pods of namespaces whose labels changed.
func (c *compiler) changeNamespaces(changed map[string]*policyfeed.Namespace) {
	for name, now := range changed {
		before := c.world.Namespaces[name]
		delete(c.world.Namespaces, name)
		if now != nil {
			c.world.Namespaces[name] = now.Labels
		}
		after := c.world.Namespaces[name]
		for _, s := range c.selectors {
			if s.namespaces == nil {
				continue
			}
			was := s.namespaces.Matches(labels.Set(before))
			is := s.namespaces.Matches(labels.Set(after))
			if s.among[name] = is; was == is {
				continue
			}
			for id := range c.byNamespace[name] {
				if p := c.world.Pods[id]; s.pods.Matches(labels.Set(p.Labels)) {
					c.member(s, p, is)
				}
			}
		}
	}
}

func (c *compiler) changePod(id PodID, after *policyfeed.Pod) {
	before := c.world.Pods[id]
	if before != nil {
		delete(c.byNamespace[id.Namespace], id)
		if len(c.byNamespace[id.Namespace]) == 0 {
			delete(c.byNamespace, id.Namespace)
		}
		delete(c.world.Pods, id)
	}
	if after != nil {
		if c.byNamespace[id.Namespace] == nil {
			c.byNamespace[id.Namespace] = map[PodID]bool{}
		}
		c.byNamespace[id.Namespace][id] = true
		c.world.Pods[id] = after
	}
	for _, s := range c.selectors {
		if before != nil && c.matches(s, before) {
			c.member(s, before, false)
		}
		if after != nil && c.matches(s, after) {
			c.member(s, after, true)
		}
	}
}

func (c *compiler) matches(s *selector, p *policyfeed.Pod) bool {
	if s.namespaces == nil {
		return s.namespace == p.Namespace && s.pods.Matches(labels.Set(p.Labels))
	}
	is, known := s.among[p.Namespace]
	if !known {
		is = s.namespaces.Matches(labels.Set(c.world.Namespaces[p.Namespace]))
		s.among[p.Namespace] = is
	}
	return is && s.pods.Matches(labels.Set(p.Labels))
}

// member has a pod come to a selector's sets, or go.
func (c *compiler) member(s *selector, p *policyfeed.Pod, comes bool) {
	for _, a := range p.Addrs {
		i := familyIndex(a)
		c.tables[i].count(s.sets[i], nft.Data{}.Addr(a), comes)
		for _, n := range s.named {
			c.portMember(n, p, a, comes)
		}
	}
}

func (c *compiler) portMember(n *named, p *policyfeed.Pod, a netip.Addr, comes bool) {
	i := familyIndex(a)
	for _, number := range numbersOf(p, n.name, n.proto) {
		c.tables[i].count(n.sets[i], nft.AddrProtoPort(a, n.proto, number), comes)
	}
}

func (t *table) count(s *addresses, key nft.Data, comes bool) {
	_, there := t.Elements[s.Set][string(key)]
	switch {
	case comes && there:
		s.more[string(key)]++
	case comes:
		t.put(s.Set, key, nil)
	case s.more[string(key)] > 1:
		s.more[string(key)]--
	case s.more[string(key)] == 1:
		delete(s.more, string(key))
	default:
		t.drop(s.Set, key)
	}
}

// changePolicies returns the pods of the node that are to be compiled again.
func (c *compiler) changePolicies(changed map[Key]*policyfeed.Policy) map[PodID]bool {
	again := map[PodID]bool{}
	for k, p := range changed {
		old := c.inNamespace[k.Namespace][k]
		now := c.parse(k, p)
		if now != nil {
			if c.inNamespace[k.Namespace] == nil {
				c.inNamespace[k.Namespace] = map[Key]*parsed{}
			}
			c.inNamespace[k.Namespace][k] = now
		} else {
			delete(c.inNamespace[k.Namespace], k)
		}
		for id := range c.local {
			if id.Namespace != k.Namespace || c.world.Pods[id] == nil {
				continue
			}
			set := labels.Set(c.world.Pods[id].Labels)
			if old != nil && old.pods.Matches(set) || now != nil && now.pods.Matches(set) {
				again[id] = true
			}
		}
	}
	return again
}

// parse notes a policy, nil for none.
func (c *compiler) parse(k Key, p *policyfeed.Policy) *parsed {
	delete(c.world.Policies, k)
	if p == nil {
		return nil
	}
	c.world.Policies[k] = p
	c.generation++
	now, err := parse(p, c.generation)
	if err != nil {
		c.log.Warn("a network policy cannot be read; it has no effect", "policy", k, "err", err)
		return nil
	}
	return now
}

// isolate leads the traffic of a pod of this node to what its policies say.
func (c *compiler) isolate(id PodID, p *policyfeed.Pod) {
	var list []*parsed
	for _, policy := range c.inNamespace[id.Namespace] {
		if policy.pods.Matches(labels.Set(p.Labels)) {
			list = append(list, policy)
		}
	}
	slices.SortFunc(list, func(a, b *parsed) int { return cmp.Compare(a.key.Name, b.key.Name) })
	for _, a := range p.Addrs {
		t := c.tables[familyIndex(a)]
		h := holding{table: t, addr: a}
		key := nft.Data{}.Addr(a)
		for side := range sideNames {
			x := c.chainOf(t, side, list, p)
			if x != nil {
				x.refs++
			}
			h.chains[side] = x
			for d, set := range t.words.pods[side] {
				if x != nil {
					t.put(set, key, nft.Data(x.names[d]))
				} else {
					t.drop(set, key)
				}
			}
		}
		if h.isolated() {
			t.put(t.self, key.Addr(a), nil)
		} else {
			t.drop(t.self, key.Addr(a))
		}
		t.owners[a] = id
		c.local[id] = append(c.local[id], h)
	}
}

// release takes back what isolate did. An address may be another pod's by now.
func (c *compiler) release(id PodID) {
	for _, h := range c.local[id] {
		for _, x := range h.chains {
			if x != nil {
				x.refs--
			}
		}
		if h.table.owners[h.addr] != id {
			continue
		}
		delete(h.table.owners, h.addr)
		key := nft.Data{}.Addr(h.addr)
		for side := range sideNames {
			for _, set := range h.table.words.pods[side] {
				h.table.drop(set, key)
			}
		}
		h.table.drop(h.table.self, key.Addr(h.addr))
	}
	delete(c.local, id)
}

// chainOf is the chain of a pod's side; nil where no policy is for it.
func (c *compiler) chainOf(t *table, side int, list []*parsed, p *policyfeed.Pod) *chain {
	next := c.isolating(t, side, list, p)
	for _, tier := range []networkpolicy.Tier{networkpolicy.BaselineTier, networkpolicy.AdminTier} {
		if tier == networkpolicy.BaselineTier && next != nil {
			continue // NetworkPolicies decide
		}
		if over := c.over(p, tier, side); len(over) > 0 {
			next = c.tierChain(t, side, over, p, next)
		}
	}
	return next
}

// isolating is the chain of the NetworkPolicies of a pod's side; nil where none isolates it.
func (c *compiler) isolating(t *table, side int, list []*parsed, p *policyfeed.Pod) *chain {
	recipe := sideNames[side]
	var policies []*parsed
	for _, policy := range list {
		if !policy.sides[side] {
			continue
		}
		policies = append(policies, policy)
		recipe += fmt.Sprintf(" %d", policy.generation)
		if policy.named && side == ingress {
			recipe += fmt.Sprint(p.Ports)
		}
	}
	if len(policies) == 0 {
		return nil
	}
	return c.remembered(t, recipe, func() *chain {
		b := builder{compiler: c, table: t, chain: &chain{side: side}, family: familyIndexOf(t.Family), verdict: letPass}
		names := make([]string, len(policies))
		for i, policy := range policies {
			names[i] = policy.key.Name
			for _, r := range policy.rules[side] {
				b.rule(&r, p)
			}
		}
		return b.finish(p.Namespace, names, keepOut)
	})
}

// remembered is the chain that a recipe led to before, or that build makes.
func (c *compiler) remembered(t *table, recipe string, build func() *chain) *chain {
	if x := t.recipes[recipe]; x != nil {
		return x
	}
	x := build()
	if len(x.recipes) == maxRecipes { // of policies that changed since, most of them
		delete(t.recipes, x.recipes[0])
		x.recipes = x.recipes[1:]
	}
	x.recipes = append(x.recipes, recipe)
	t.recipes[recipe] = x
	return x
}

// maxRecipes is how many recipes of a chain are remembered: each change of a policy is one
// more, also where the chain stays the same.
const maxRecipes = 16

// finish makes the chain, or finds one that says the same. Its name begins with where its
// policies are; last is what becomes of what no rule matches.
func (b *builder) finish(where string, policies []string, last func(direction) nft.Rule) *chain {
	t, name := b.table, where
	for i, policy := range policies {
		if name += "/" + policy; len(name) > maxChainName {
			name = name[:maxChainName]
			if more := len(policies) - 1 - i; more > 0 {
				name += fmt.Sprintf("/and-%d-more", more)
			}
			break
		}
	}
	for d := range directions {
		b.rules[d] = append(b.rules[d], last(d))
	}
	texts := make([]string, len(b.rules[forth]))
	for i, r := range b.rules[forth] {
		texts[i] = r.String()
	}
	for d, suffix := range []string{"", "-replies"} {
		b.chain.names[d] = fmt.Sprintf("%s%s/%s/%s", sideNames[b.chain.side], suffix, name, hash(texts...))
	}
	if x := t.chains[b.chain.names[forth]]; x != nil {
		return x
	}
	x := b.chain
	t.chains[x.names[forth]] = x
	for d := range directions {
		t.setChain(x.names[d], &nft.Chain{Rules: b.rules[d]})
	}
	if x.next != nil {
		x.next.refs++
	}
	for _, s := range x.selectors {
		s.refs++
	}
	for _, n := range x.named {
		n.refs++
	}
	for _, f := range x.fixed {
		f.refs++
	}
	return x
}

// maxChainName is of a chain's name what tells a reader of policies; the kernel takes
// 255 bytes.
const maxChainName = 150

func familyIndexOf(f nft.Family) int { return slices.Index(families[:], f) }

// builder makes one chain.
type builder struct {
	*compiler
	table  *table
	chain  *chain
	family int
	rules  [directions][]nft.Rule
	// verdict is what becomes of what a rule matches.
	verdict func(direction) nft.Rule
}

// What becomes of a packet: it passes as far as this side is asked, or it does not.
func letPass(direction) nft.Rule { return nft.Rule{nft.Return()} }

func keepOut(direction) nft.Rule { return nft.Rule{nft.Goto(chainDenied)} }

// match adds a rule for each direction.
func (b *builder) match(of func(d direction) nft.Rule) {
	for d := range directions {
		b.rules[d] = append(b.rules[d], append(of(d), b.verdict(d)...))
	}
}

func (b *builder) rule(r *rule, p *policyfeed.Pod) {
	all, some := b.portsOf(r, p)
	blocks := b.blocksOf(r)
	// A set that no rule looks into is not made: chains that say the same use the same.
	hasPorts := r.anyPort || len(all)+len(some) > 0
	hasPeers := r.anyPeer || len(r.peers)+len(blocks) > 0
	if hasPorts && hasPeers {
		matches := b.portMatches(r, all, some)
		for _, m := range b.peerMatches(r, blocks) {
			for _, port := range matches {
				b.match(func(d direction) nft.Rule {
					var out nft.Rule
					if m != nil {
						out = append(out, m(d))
					}
					if port != nil {
						out = append(out, port(d))
					}
					return out
				})
			}
		}
	}
	if b.chain.side == egress {
		b.namedRules(r)
	}
}

// match is a statement for each direction; nil: nothing to match.
type match func(direction) nft.Statement

// blocksOf are a rule's blocks of the table's family.
func (b *builder) blocksOf(r *rule) (out []nft.Data) {
	for _, s := range r.blocks {
		if nft.FamilyOf(s.first) == b.table.Family {
			out = append(out, nft.AddrsOf(s.first, s.last))
		}
	}
	return out
}

func (b *builder) peerMatches(r *rule, blocks []nft.Data) (out []match) {
	if r.anyPeer {
		return []match{nil}
	}
	side := b.chain.side
	for _, p := range r.peers {
		s := b.selector(p)
		b.chain.selectors = append(b.chain.selectors, s)
		set := s.sets[b.family].Set
		out = append(out, func(d direction) nft.Statement {
			return nft.In(nft.Key{b.table.other(side, d)}, set)
		})
	}
	if len(blocks) > 0 {
		set := b.fixed("blocks", nft.Key{b.table.Saddr()}.Type(), blocks)
		out = append(out, func(d direction) nft.Statement {
			return nft.In(nft.Key{b.table.other(side, d)}, set)
		})
	}
	return out
}

// portsOf are a rule's ports with numbers: protocols of which it means all, and ranges
// of others. Ports of a destination's own names are known for a pod's own side.
func (b *builder) portsOf(r *rule, p *policyfeed.Pod) (all map[uint8]bool, some map[uint8][][2]uint16) {
	all, some = map[uint8]bool{}, map[uint8][][2]uint16{}
	for _, port := range r.ports {
		switch {
		case port.all:
			all[port.proto] = true
		case port.name == "":
			some[port.proto] = append(some[port.proto], [2]uint16{port.first, port.last})
		case b.chain.side == ingress:
			for _, n := range numbersOf(p, port.name, port.proto) {
				some[port.proto] = append(some[port.proto], [2]uint16{n, n})
			}
		}
	}
	return all, some
}

func (b *builder) portMatches(r *rule, all map[uint8]bool, some map[uint8][][2]uint16) (out []match) {
	if r.anyPort {
		return []match{nil}
	}
	for _, proto := range slices.Sorted(maps.Keys(all)) {
		out = append(out, func(direction) nft.Statement { return nft.ProtoIs(proto) })
	}
	for _, proto := range slices.Sorted(maps.Keys(some)) {
		if all[proto] {
			continue
		}
		var elems []nft.Data
		for _, r := range mergePorts(some[proto]) {
			elems = append(elems, nft.PortsOf(r[0], r[1]))
		}
		set := b.fixed("ports", nft.Key{nft.Dport()}.Type(), elems)
		out = append(out, func(d direction) nft.Statement { return portIn(proto, set, d) })
	}
	return out
}

// namedRules match what goes to a port of the destination's own name for it.
func (b *builder) namedRules(r *rule) {
	to := r.peers
	if r.anyPeer {
		to = []peers{everyPod}
	}
	for _, port := range r.ports {
		if port.name == "" {
			continue
		}
		for _, p := range to {
			s := b.selector(p)
			n := b.namedOf(s, namedPort{port.name, port.proto})
			b.chain.selectors, b.chain.named = append(b.chain.selectors, s), append(b.chain.named, n)
			b.match(func(d direction) nft.Rule { return nft.Rule{b.table.isAt(n.sets[b.family].Set, d)} })
		}
	}
}

// selector finds or makes the sets of a selector. One that no chain takes goes again
// (collect).
func (c *compiler) selector(p peers) *selector {
	id := p.id()
	if s := c.selectors[id]; s != nil {
		return s
	}
	s := &selector{peers: p, id: id, named: map[namedPort]*named{}, among: map[string]bool{}}
	for i, t := range c.tables {
		s.sets[i] = t.addresses("pods-"+hash(id), nft.Key{t.Saddr()}.Type())
	}
	c.selectors[id] = s
	c.eachMember(s, func(p *policyfeed.Pod) { c.member(s, p, true) })
	return s
}

func (t *table) addresses(name string, kind nft.Type) *addresses {
	a := &addresses{Set: &nft.Set{Name: name, Key: kind}, more: map[string]int{}}
	t.addSet(a.Set)
	return a
}

func (c *compiler) eachMember(s *selector, do func(*policyfeed.Pod)) {
	each := func(ns string) {
		for id := range c.byNamespace[ns] {
			if p := c.world.Pods[id]; c.matches(s, p) {
				do(p)
			}
		}
	}
	if s.namespaces == nil {
		each(s.namespace)
		return
	}
	for ns := range c.byNamespace {
		each(ns)
	}
}

func (c *compiler) namedOf(s *selector, port namedPort) *named {
	if n := s.named[port]; n != nil {
		return n
	}
	n := &named{namedPort: port}
	for i, t := range c.tables {
		n.sets[i] = t.addresses(
			fmt.Sprintf("named-%s", hash(s.id, port.name, fmt.Sprint(port.proto))), t.AddrProtoPort().Type())
	}
	c.eachMember(s, func(p *policyfeed.Pod) {
		for _, a := range p.Addrs {
			c.portMember(n, p, a, true)
		}
	})
	s.named[port] = n
	return n
}

// fixed finds or makes a set that never changes; elems are sorted.
func (b *builder) fixed(kind string, key nft.Type, elems []nft.Data) *nft.Set {
	t := b.table
	var text strings.Builder
	for _, e := range elems {
		text.Write(e)
	}
	name := kind + "-" + hash(text.String())
	f := t.fixed[name]
	if f == nil {
		f = &fixedSet{Set: &nft.Set{Name: name, Key: key, Intervals: true}}
		t.fixed[name] = f
		t.addSet(f.Set)
		for _, e := range elems {
			t.put(f.Set, e, nil)
		}
	}
	b.chain.fixed = append(b.chain.fixed, f)
	return f.Set
}

// collect removes what nothing refers to any more. What a change let go of and took
// again is still there.
func (c *compiler) collect() {
	for _, t := range c.tables {
		for again := true; again; { // one may have been all that led to another
			again = false
			for name, x := range t.chains {
				if x.refs == 0 {
					t.discard(name, x)
					again = again || x.next != nil
				}
			}
		}
	}
	for id, s := range c.selectors {
		for port, n := range s.named {
			if n.refs == 0 {
				for i, t := range c.tables {
					t.dropSet(n.sets[i].Set)
				}
				delete(s.named, port)
			}
		}
		if s.refs == 0 {
			for i, t := range c.tables {
				t.dropSet(s.sets[i].Set)
			}
			delete(c.selectors, id)
		}
	}
	for _, t := range c.tables {
		for name, f := range t.fixed {
			if f.refs == 0 {
				t.dropSet(f.Set)
				delete(t.fixed, name)
			}
		}
	}
}

func (t *table) discard(name string, x *chain) {
	delete(t.chains, name)
	for _, r := range x.recipes {
		delete(t.recipes, r)
	}
	for d := range directions {
		t.setChain(x.names[d], nil)
	}
	if x.next != nil {
		x.next.refs--
	}
	for _, s := range x.selectors {
		s.refs--
	}
	for _, n := range x.named {
		n.refs--
	}
	for _, f := range x.fixed {
		f.refs--
	}
}
