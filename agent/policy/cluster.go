package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/shoal-project/shoal/agent/policyfeed"
	"github.com/shoal-project/shoal/cni/nft"
)

// ClusterNetworkPolicies are those of network-policy-api v0.2.0. Rules of the tier Admin
// come before a pod's NetworkPolicies, those of Baseline after them, and only for pods that
// none isolates; within a tier in the order of priorities and of rules. The first that
// matches decides; what none matches is allowed.

// clusterParsed is a ClusterNetworkPolicy in the form that pods are compiled by.
type clusterParsed struct {
	name       string
	generation uint64
	tier       networkpolicy.Tier
	priority   int32
	subject    peers
	rules      [2][]clusterRule
	named      bool // a rule names a port
	// unknown are the rules that say something which is not known here.
	unknown []string
}

// clusterRule does its action with what a rule matches.
type clusterRule struct {
	rule
	action networkpolicy.ClusterNetworkPolicyRuleAction
}

// parseCluster reads a policy.
func parseCluster(p *policyfeed.ClusterPolicy, generation uint64) (*clusterParsed, error) {
	out := &clusterParsed{name: p.Name, generation: generation, tier: p.Spec.Tier, priority: p.Spec.Priority}
	if out.tier != networkpolicy.AdminTier && out.tier != networkpolicy.BaselineTier {
		return nil, fmt.Errorf("tier: %q is neither Admin nor Baseline", out.tier)
	}
	var ok bool
	if out.subject, ok = clusterPeers(p.Spec.Subject.Namespaces, p.Spec.Subject.Pods); !ok {
		return nil, fmt.Errorf("subject: no pods are selected in a way that is known")
	}
	for _, r := range p.Spec.Ingress {
		b := newClusterRule(r.Action, r.Protocols)
		for _, peer := range r.From {
			b.peer(peer.Namespaces, peer.Pods, nil)
		}
		out.add(ingress, b)
	}
	for _, r := range p.Spec.Egress {
		b := newClusterRule(r.Action, r.Protocols)
		for _, peer := range r.To {
			b.peer(peer.Namespaces, peer.Pods, peer.Networks)
		}
		out.add(egress, b)
	}
	for _, side := range out.rules {
		for _, r := range side {
			out.named = out.named || slices.ContainsFunc(r.ports, func(p ports) bool { return p.name != "" })
		}
	}
	return out, nil
}

func (p *clusterParsed) add(side int, b *clusterRuleBuilder) {
	if b.unknown {
		p.unknown = append(p.unknown, fmt.Sprintf("spec.%s[%d]", sideNames[side], len(p.rules[side])))
	}
	p.rules[side] = append(p.rules[side], b.done())
}

// clusterRuleBuilder gathers a rule. What a rule says in a way that is not known here, of a
// later version, makes one that accepts match nothing, and others deny everything, as the
// API demands.
type clusterRuleBuilder struct {
	clusterRule
	unknown bool
}

func newClusterRule(
	action networkpolicy.ClusterNetworkPolicyRuleAction, protocols []networkpolicy.ClusterNetworkPolicyProtocol,
) *clusterRuleBuilder {
	b := &clusterRuleBuilder{clusterRule: clusterRule{action: action}}
	b.anyPort = len(protocols) == 0
	for _, p := range protocols {
		list, ok := clusterPorts(p)
		b.ports = append(b.ports, list...)
		b.unknown = b.unknown || !ok
	}
	return b
}

func (b *clusterRuleBuilder) peer(
	namespaces *metav1.LabelSelector, pods *networkpolicy.NamespacedPod, networks []networkpolicy.CIDR,
) {
	if !knownPeer(namespaces, pods, networks) {
		b.unknown = true
		return
	}
	for _, n := range networks {
		b.blocks = append(b.blocks, spanOf(netip.MustParsePrefix(string(n))))
	}
	if s, ok := clusterPeers(namespaces, pods); ok {
		b.peers = append(b.peers, s)
	}
}

// knownPeer tells whether a peer says what is known here, and no more.
func knownPeer(
	namespaces *metav1.LabelSelector, pods *networkpolicy.NamespacedPod, networks []networkpolicy.CIDR,
) bool {
	if len(networks) == 0 {
		_, ok := clusterPeers(namespaces, pods)
		return ok
	}
	return !slices.ContainsFunc(networks, func(n networkpolicy.CIDR) bool {
		p, err := netip.ParsePrefix(string(n))
		return err != nil || p.Addr().Is4In6()
	})
}

func (b *clusterRuleBuilder) done() clusterRule {
	b.blocks = merge(b.blocks)
	if b.unknown {
		if b.action == networkpolicy.ClusterNetworkPolicyRuleActionAccept {
			return clusterRule{action: b.action}
		}
		return clusterRule{rule{anyPeer: true, anyPort: true}, networkpolicy.ClusterNetworkPolicyRuleActionDeny}
	}
	return b.clusterRule
}

// clusterPeers are the pods that one of two fields means; false where neither does.
func clusterPeers(namespaces *metav1.LabelSelector, pods *networkpolicy.NamespacedPod) (out peers, ok bool) {
	of := labels.Everything()
	if pods != nil {
		var err error
		if of, err = metav1.LabelSelectorAsSelector(&pods.PodSelector); err != nil {
			return out, false
		}
		namespaces = &pods.NamespaceSelector
	}
	if namespaces == nil {
		return out, false
	}
	in, err := metav1.LabelSelectorAsSelector(namespaces)
	return peers{namespaces: in, pods: of}, err == nil
}

// protocolsWithPorts are those that a port's name is looked for in.
var protocolsWithPorts = []uint8{nft.Proto("TCP"), nft.Proto("UDP"), nft.Proto("SCTP")}

func clusterPorts(p networkpolicy.ClusterNetworkPolicyProtocol) (out []ports, ok bool) {
	if p.DestinationNamedPort != "" {
		for _, proto := range protocolsWithPorts {
			out = append(out, ports{proto: proto, name: p.DestinationNamedPort})
		}
		return out, true
	}
	of := func(proto string, port *networkpolicy.Port) ([]ports, bool) {
		s := ports{proto: nft.Proto(proto)}
		switch {
		case port == nil:
			s.all = true
		case port.Range != nil && 0 < port.Range.Start && port.Range.Start <= port.Range.End && port.Range.End <= 65535:
			s.first, s.last = uint16(port.Range.Start), uint16(port.Range.End)
		case port.Range == nil && 0 < port.Number && port.Number <= 65535:
			s.first, s.last = uint16(port.Number), uint16(port.Number)
		default:
			return nil, false
		}
		return []ports{s}, true
	}
	switch {
	case p.TCP != nil:
		return of("TCP", p.TCP.DestinationPort)
	case p.UDP != nil:
		return of("UDP", p.UDP.DestinationPort)
	case p.SCTP != nil:
		return of("SCTP", p.SCTP.DestinationPort)
	}
	return nil, false
}

// compareCluster orders policies of a tier: those of the same priority by their names.
func compareCluster(a, b *clusterParsed) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.name, b.name))
}

// changeCluster returns the pods of the node that are to be compiled again.
func (c *compiler) changeCluster(changed map[string]*policyfeed.ClusterPolicy) map[PodID]bool {
	again := map[PodID]bool{}
	for name, p := range changed {
		old, now := c.cluster[name], c.parseCluster(name, p)
		if delete(c.cluster, name); now != nil {
			c.cluster[name] = now
		}
		for id := range c.local {
			pod := c.world.Pods[id]
			if pod != nil && (old != nil && c.subject(old, pod) || now != nil && c.subject(now, pod)) {
				again[id] = true
			}
		}
	}
	return again
}

// parseCluster notes a policy, nil for none.
func (c *compiler) parseCluster(name string, p *policyfeed.ClusterPolicy) *clusterParsed {
	delete(c.world.Cluster, name)
	if p == nil {
		return nil
	}
	c.world.Cluster[name] = p
	c.generation++
	now, err := parseCluster(p, c.generation)
	if err != nil {
		c.log.Warn("a ClusterNetworkPolicy cannot be read; it has no effect", "policy", name, "err", err)
		return nil
	}
	if len(now.unknown) > 0 {
		c.log.Warn("rules of a ClusterNetworkPolicy have peers or protocols that are not known here: those that accept "+
			"match nothing, others deny everything", "policy", name, "rules", now.unknown)
	}
	return now
}

// subject tells whether a policy is for a pod.
func (c *compiler) subject(p *clusterParsed, pod *policyfeed.Pod) bool {
	return p.subject.pods.Matches(labels.Set(pod.Labels)) &&
		p.subject.namespaces.Matches(labels.Set(c.world.Namespaces[pod.Namespace]))
}

// over are the policies of a tier that have rules for a pod's side, in their order.
func (c *compiler) over(pod *policyfeed.Pod, tier networkpolicy.Tier, side int) (out []*clusterParsed) {
	for _, p := range c.cluster {
		if p.tier == tier && len(p.rules[side]) > 0 && c.subject(p, pod) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, compareCluster)
	return out
}

// tierChain finds or makes the chain of a tier's policies, after which next comes, if any.
func (c *compiler) tierChain(t *table, side int, list []*clusterParsed, p *policyfeed.Pod, next *chain) *chain {
	recipe := fmt.Sprintf("%s %s", sideNames[side], list[0].tier)
	for _, policy := range list {
		recipe += fmt.Sprintf(" %d", policy.generation)
		if policy.named && side == ingress {
			recipe += fmt.Sprint(p.Ports)
		}
	}
	if next != nil {
		recipe += " " + next.names[forth]
	}
	return c.remembered(t, recipe, func() *chain {
		b := builder{compiler: c, table: t, chain: &chain{side: side, next: next}, family: familyIndexOf(t.Family)}
		names := make([]string, len(list))
		for i, policy := range list {
			names[i] = policy.name
			for _, r := range policy.rules[side] {
				b.verdict = b.verdictOf(r.action)
				b.rule(&r.rule, p)
			}
		}
		// No namespace has a name in capitals.
		return b.finish(string(list[0].tier), names, b.pass)
	})
}

// verdictOf is what a rule does with what it matches.
func (b *builder) verdictOf(a networkpolicy.ClusterNetworkPolicyRuleAction) func(direction) nft.Rule {
	switch a {
	case networkpolicy.ClusterNetworkPolicyRuleActionAccept:
		return letPass
	case networkpolicy.ClusterNetworkPolicyRuleActionPass:
		return b.pass
	}
	return keepOut // also what a later version calls an action
}

// pass leads to the next tier; where nothing is there, all is allowed.
func (b *builder) pass(d direction) nft.Rule {
	if b.chain.next == nil {
		return letPass(d)
	}
	return nft.Rule{nft.Goto(b.chain.next.names[d])}
}
