package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/nft"
)

// Chains that many go to.
const (
	chainReject  = "no-backends" // has the packet refused
	chainDrop    = "elsewhere"   // drops: another node has the backends
	chainGossip  = "to-gossip"   // drops what pods and Services send to the gossip
	chainInvalid = "invalid"     // drops what is of no flow, from and to pods
)

// affinityPrefix begins the names of affinity sets. The timeout in seconds
// follows, since a set's cannot be changed.
const affinityPrefix = "aff"

// affinityMost limits the pairs that one affinity set remembers.
const affinityMost = 65535

// renderer turns one Service into objects. It is pure.
type renderer struct {
	*table
	clusterCIDRs cidr.Prefixes // pods: they keep their address to External addresses with policy Local
	podCIDRs     cidr.Prefixes // this node's pods: they may be their own backend
	nodeIPs      []netip.Addr  // this node's addresses
}

func (r *renderer) render(s *service.Service, out objects) {
	if s == nil || s.NotProxied || s.Headless || s.ExternalName != "" {
		return
	}
	for i := range s.Ports {
		r.renderPort(s, &s.Ports[i], out)
	}
}

func (r *renderer) renderPort(s *service.Service, p *service.Port, out objects) {
	proto := nft.Proto(p.Protocol)
	if proto == 0 {
		return
	}
	c := chains{renderer: r, s: s, p: p, out: out}
	internal := c.internal()
	for _, a := range s.ClusterIPs {
		r.addElem(out, elem{a, proto, p.Number}, internal)
	}
	if p.NodePort == 0 && len(s.ExternalIPs) == 0 && len(s.BalancerIPs) == 0 {
		return
	}
	ext := c.external()
	fw := ext
	if len(s.SourceRanges) > 0 && len(s.BalancerIPs) > 0 {
		fw = c.firewall()
	}
	for _, a := range s.BalancerIPs {
		r.addElem(out, elem{a, proto, p.Number}, fw)
	}
	for _, a := range s.ExternalIPs {
		r.addElem(out, elem{a, proto, p.Number}, ext)
	}
	// A Service answers on the node's addresses of its own families only.
	if p.NodePort != 0 && slices.ContainsFunc(s.ClusterIPs, r.has) {
		out.elems[elem{proto: proto, port: p.NodePort}] = ext
	}
}

// chains makes the chains of one port, those that it needs.
type chains struct {
	*renderer
	s       *service.Service
	p       *service.Port
	out     objects
	cluster string // once it is made
}

func (c *chains) name(kind string) string {
	return fmt.Sprintf("%s-%s/%s/%s/%s", kind, c.s.Namespace, c.s.Name, strings.ToLower(c.p.Protocol), portName(c.p))
}

func (c *chains) internal() dest {
	switch {
	case c.s.Affinity == 0:
		return dest{backends: c.targets(c.p.Internal, c.out), drop: c.p.Internal.Drop}
	case sameRoute(c.p.Internal, c.p.Cluster):
		return dest{chain: c.clusterChain()}
	}
	return dest{chain: c.balance(c.name("int"), c.p.Internal, c.s.Affinity, c.out)}
}

func (c *chains) external() dest {
	if c.s.Affinity == 0 && !c.p.External.KeepIP {
		return dest{backends: c.targets(c.p.Cluster, c.out), drop: c.p.Cluster.Drop, masquerade: true}
	}
	return dest{chain: c.externalChain()}
}

// clusterChain makes the chain to all backends.
func (c *chains) clusterChain() string {
	if c.cluster == "" {
		c.cluster = c.balance(c.name("svc"), c.p.Cluster, c.s.Affinity, c.out)
	}
	return c.cluster
}

// firewall makes the chain for balancer addresses, which lets only the given
// sources through (SVC-60).
func (c *chains) firewall() dest {
	name, ranges := c.name("fw"), c.s.SourceRanges
	// A balancer may have the node hold the address itself. What the node sends there
	// comes from there, too.
	if slices.ContainsFunc(c.nodeIPs, ranges.Contains) {
		ranges = slices.Clone(ranges)
		for _, a := range c.s.BalancerIPs {
			ranges = append(ranges, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	allowed := c.from(ranges, c.externalChain())
	c.out.Chains[name] = rules(append(allowed, nft.Rule{nft.Drop()})...)
	return dest{chain: name}
}

func portName(p *service.Port) string {
	if p.Name == "" {
		return fmt.Sprint(p.Number)
	}
	return p.Name
}

// addElem adds an element, unless it was added for a better claim.
func (r *renderer) addElem(out objects, e elem, d dest) {
	if _, taken := out.elems[e]; r.has(e.addr) && !taken {
		out.elems[e] = d
	}
}

// claim is how good a Service's right to an element is.
type claim int

// Claims, the best first. A cluster IP or node port was given to this Service by
// the cluster, a balancer's address by the balancer's controller; an external
// address anybody may write into a Service of theirs.
const (
	claimCluster claim = iota
	claimBalancer
	claimExternal
	claims
)

func claimOf(s *service.Service, e elem) claim {
	switch {
	case !e.addr.IsValid() || slices.Contains(s.ClusterIPs, e.addr):
		return claimCluster
	case slices.Contains(s.BalancerIPs, e.addr):
		return claimBalancer
	}
	return claimExternal
}

func sameRoute(a, b service.Route) bool {
	return a.Drop == b.Drop && slices.Equal(a.Backends, b.Backends)
}

// balance adds the chain that chooses a backend, and returns where to go.
func (r *renderer) balance(name string, route service.Route, affinity time.Duration, out objects) string {
	targets := r.targets(route, out)
	if len(targets) == 0 {
		if route.Drop {
			return chainDrop
		}
		return chainReject
	}
	if affinity > 0 {
		r.sticky(name, targets, affinity, out)
	} else {
		out.Chains[name] = rules(nft.Rule{nft.DNATToOneOf(targets)})
	}
	return name
}

// sticky adds the chains of a port with client affinity. A set remembers pairs
// of client and backend; the pairs of a backend that is gone are not looked
// for any more. (One map from client to backend would do, but nft 1.0.6
// crashes when it lists rules that write a looked-up value.)
func (r *renderer) sticky(name string, targets []netip.AddrPort, affinity time.Duration, out objects) {
	memory := &nft.Set{
		Name: fmt.Sprintf("%s%d-%s", affinityPrefix, affinity/time.Second, name),
		Key:  r.Family.AddrPair().Type(), Timeout: affinity, Size: affinityMost, Keep: true,
	}
	out.AddSets(memory)
	var remembered []nft.Rule
	var backends []string
	for _, t := range targets {
		backend := fmt.Sprintf("%s/%s/%d", name, t.Addr(), t.Port())
		backends = append(backends, backend)
		key := nft.Key{r.Family.Saddr(), nft.Fixed(t.Addr())}
		out.Chains[backend] = rules(nft.Rule{nft.Remember(key, memory), nft.DNATToOneOf([]netip.AddrPort{t})})
		remembered = append(remembered, nft.Rule{nft.In(key, memory), nft.Goto(backend)})
	}
	out.Chains[name] = rules(append(remembered, nft.Rule{nft.GotoOneOf(backends)})...)
}

// targets are the route's backends of the table's family; those on this node may
// be the client too.
func (r *renderer) targets(route service.Route, out objects) []netip.AddrPort {
	var targets []netip.AddrPort
	for _, b := range route.Backends {
		a := b.Addr()
		if !r.has(a) {
			continue
		}
		targets = append(targets, b.AddrPort)
		if b.Local || r.podCIDRs.Contains(a) {
			out.pairs[a]++
		}
	}
	return targets
}

// externalChain makes the chain for traffic to node ports and external addresses.
// With policy Cluster the client's address is replaced, so that the answer
// comes back through this node. With policy Local clients from outside keep
// theirs and reach this node's pods only; pods and processes of the node reach
// all backends.
func (c *chains) externalChain() string {
	cluster, name := c.clusterChain(), c.name("ext")
	if !c.p.External.KeepIP {
		if cluster == chainReject || cluster == chainDrop {
			return cluster
		}
		c.out.Chains[name] = rules(nft.Rule{nft.Mark(markMasquerade), nft.Goto(cluster)})
		return name
	}
	local := c.balance(c.name("local"), c.p.External, c.s.Affinity, c.out)
	c.out.Chains[name] = rules(append(c.from(c.clusterCIDRs, cluster),
		nft.Rule{nft.FromLocal(), nft.Mark(markMasquerade), nft.Goto(cluster)},
		nft.Rule{nft.Goto(local)})...)
	return name
}

// from leads what comes from some ranges to a chain.
func (t *table) from(ranges cidr.Prefixes, next string) (all []nft.Rule) {
	for _, p := range t.only(ranges) {
		all = append(all, nft.Rule{nft.SaddrIn(p), nft.Goto(next)})
	}
	return all
}

func rules(all ...nft.Rule) nft.Chain { return nft.Chain{Rules: all} }
