package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/shoal-project/shoal/agent/policyfeed"
	"github.com/shoal-project/shoal/cni/nft"
)

// Packet begins a flow: its addresses are those of the pods themselves, after a
// Service's was rewritten and before a source is.
type Packet struct {
	From, To netip.Addr
	Protocol uint8  // as IP numbers it
	Port     uint16 // of the destination
}

// Decision is what policies say of a packet.
type Decision struct {
	Allowed bool `json:"allowed"`
	// Egress is what those of the source pod say, Ingress those of the destination.
	Egress  Side `json:"egress"`
	Ingress Side `json:"ingress"`
}

// Side is one end's part of a decision.
type Side struct {
	Pod string `json:"pod,omitempty"` // empty: no pod has the address
	// Node is where the pod is, and this decided.
	Node string `json:"node,omitempty"`
	// Isolating are the policies that let only through what they name.
	Isolating []string `json:"isolating,omitempty"`
	// By is the policy that allows, Rule the place of its rule.
	By   string `json:"by,omitempty"`
	Rule int    `json:"rule,omitempty"`
	// Cluster is the ClusterNetworkPolicy that decides, if one does: Isolating and By are
	// empty then.
	Cluster *ClusterDecision `json:"cluster,omitempty"`
}

// ClusterDecision is by a ClusterNetworkPolicy.
type ClusterDecision struct {
	Policy string             `json:"policy"`
	Tier   networkpolicy.Tier `json:"tier"`
	// Rule is the place of the rule, RuleName what it calls itself.
	Rule     int    `json:"rule"`
	RuleName string `json:"ruleName,omitempty"`
	Accepted bool   `json:"accepted"`
}

// Allows tells whether the end lets the packet pass.
func (s *Side) Allows() bool {
	if s.Cluster != nil {
		return s.Cluster.Accepted
	}
	return len(s.Isolating) == 0 || s.By != ""
}

// Verdict is the plain reading of the API's documentation, object by object; that
// the kernel says the same is tested with packets. own is the address of the node
// where From and To are, which a pod's own node always may talk to, and be talked to.
func Verdict(w *World, p Packet) Decision {
	from, to := w.podAt(p.From), w.podAt(p.To)
	var d Decision
	if from != nil {
		d.Egress = w.side(from, true, p)
	}
	if to != nil {
		d.Ingress = w.side(to, false, p)
	}
	// A pod cannot keep itself from itself.
	d.Allowed = p.From == p.To || d.Egress.Allows() && d.Ingress.Allows()
	return d
}

func (w *World) podAt(a netip.Addr) *policyfeed.Pod {
	for _, p := range w.Pods {
		if slices.Contains(p.Addrs, a) {
			return p
		}
	}
	return nil
}

// side reads the policies of one end.
func (w *World) side(pod *policyfeed.Pod, egress bool, p Packet) Side {
	s := Side{Pod: pod.Key.String(), Node: pod.Node}
	if pod.Key == clusterDNS {
		return s
	}
	if s.Cluster = w.clusterDecision(pod, networkpolicy.AdminTier, egress, p); s.Cluster != nil {
		return s
	}
	list := slices.SortedFunc(w.selecting(pod, egress), func(a, b *policyfeed.Policy) int {
		return cmp.Compare(a.Name, b.Name)
	})
	for _, policy := range list {
		s.Isolating = append(s.Isolating, policy.Key.String())
		if s.By != "" {
			continue
		}
		if rule, ok := w.allows(policy, egress, p); ok {
			s.By, s.Rule = policy.Key.String(), rule
		}
	}
	if len(list) == 0 {
		s.Cluster = w.clusterDecision(pod, networkpolicy.BaselineTier, egress, p)
	}
	return s
}

// clusterDecision is that of a tier's ClusterNetworkPolicies; nil: none decides.
func (w *World) clusterDecision(pod *policyfeed.Pod, tier networkpolicy.Tier, egress bool, p Packet) *ClusterDecision {
	list := slices.SortedFunc(maps.Values(w.Cluster), func(a, b *policyfeed.ClusterPolicy) int {
		return cmp.Or(cmp.Compare(a.Spec.Priority, b.Spec.Priority), cmp.Compare(a.Name, b.Name))
	})
	for _, policy := range list {
		spec := &policy.Spec
		if spec.Tier != tier || !w.clusterSelects(spec.Subject.Namespaces, spec.Subject.Pods, pod) {
			continue
		}
		for i, r := range w.clusterRules(spec, egress, p) {
			if !r.matches {
				continue
			}
			if r.action == networkpolicy.ClusterNetworkPolicyRuleActionPass {
				return nil
			}
			return &ClusterDecision{Policy: policy.Name, Tier: tier, Rule: i, RuleName: r.name,
				Accepted: r.action == networkpolicy.ClusterNetworkPolicyRuleActionAccept}
		}
	}
	return nil
}

// clusterMatch is a rule of a direction, and whether it matches a packet.
type clusterMatch struct {
	name    string
	action  networkpolicy.ClusterNetworkPolicyRuleAction
	matches bool
}

func (w *World) clusterRules(
	spec *networkpolicy.ClusterNetworkPolicySpec, egress bool, p Packet,
) (out []clusterMatch) {
	// What is not known here is closed, as in the compiler.
	add := func(name string, action networkpolicy.ClusterNetworkPolicyRuleAction, known, matches bool) {
		switch {
		case known:
			out = append(out, clusterMatch{name, action, matches})
		case action == networkpolicy.ClusterNetworkPolicyRuleActionAccept:
			out = append(out, clusterMatch{name, action, false})
		default:
			out = append(out, clusterMatch{name, networkpolicy.ClusterNetworkPolicyRuleActionDeny, true})
		}
	}
	if !egress {
		from := w.podAt(p.From)
		for _, r := range spec.Ingress {
			known, isPeer := knownProtocols(r.Protocols), false
			for _, peer := range r.From {
				known = known && knownPeer(peer.Namespaces, peer.Pods, nil)
				isPeer = isPeer || from != nil && w.clusterSelects(peer.Namespaces, peer.Pods, from)
			}
			add(r.Name, r.Action, known, isPeer && w.clusterPorts(r.Protocols, p, true))
		}
		return out
	}
	to := w.podAt(p.To)
	for _, r := range spec.Egress {
		known, asPod, asAddress := knownProtocols(r.Protocols), false, false
		for _, peer := range r.To {
			known = known && knownPeer(peer.Namespaces, peer.Pods, peer.Networks)
			asPod = asPod || to != nil && w.clusterSelects(peer.Namespaces, peer.Pods, to)
			asAddress = asAddress || slices.ContainsFunc(peer.Networks, func(n networkpolicy.CIDR) bool {
				prefix, err := netip.ParsePrefix(string(n))
				return err == nil && prefix.Contains(p.To)
			})
		}
		add(r.Name, r.Action, known, (asPod || asAddress) && w.clusterPorts(r.Protocols, p, asPod))
	}
	return out
}

func knownProtocols(list []networkpolicy.ClusterNetworkPolicyProtocol) bool {
	return !slices.ContainsFunc(list, func(p networkpolicy.ClusterNetworkPolicyProtocol) bool {
		_, ok := clusterPorts(p)
		return !ok
	})
}

func (w *World) clusterSelects(
	namespaces *metav1.LabelSelector, pods *networkpolicy.NamespacedPod, pod *policyfeed.Pod,
) bool {
	if pods != nil {
		return selects(&pods.NamespaceSelector, w.Namespaces[pod.Namespace]) && selects(&pods.PodSelector, pod.Labels)
	}
	return namespaces != nil && selects(namespaces, w.Namespaces[pod.Namespace])
}

// clusterPorts tells whether a packet is of one of the list; no list is every packet.
// Ports have names where the destination is meant as a pod.
func (w *World) clusterPorts(list []networkpolicy.ClusterNetworkPolicyProtocol, p Packet, asPod bool) bool {
	is := func(proto string, port *networkpolicy.Port) bool {
		if nft.Proto(proto) != p.Protocol {
			return false
		}
		if port != nil && port.Range != nil {
			return port.Range.Start <= int32(p.Port) && int32(p.Port) <= port.Range.End
		}
		return port == nil || port.Number == int32(p.Port)
	}
	return len(list) == 0 || slices.ContainsFunc(list, func(x networkpolicy.ClusterNetworkPolicyProtocol) bool {
		to := w.podAt(p.To)
		return x.TCP != nil && is("TCP", x.TCP.DestinationPort) || x.UDP != nil && is("UDP", x.UDP.DestinationPort) ||
			x.SCTP != nil && is("SCTP", x.SCTP.DestinationPort) ||
			x.DestinationNamedPort != "" && asPod && to != nil &&
				slices.Contains(numbersOf(to, x.DestinationNamedPort, p.Protocol), p.Port)
	})
}

// selecting are the policies that isolate a pod in a direction.
func (w *World) selecting(pod *policyfeed.Pod, egress bool) func(func(*policyfeed.Policy) bool) {
	return func(yield func(*policyfeed.Policy) bool) {
		for _, policy := range w.Policies {
			if policy.Namespace == pod.Namespace && isolates(&policy.Spec, egress) &&
				selects(&policy.Spec.PodSelector, pod.Labels) && !yield(policy) {
				return
			}
		}
	}
}

// isolates tells of which directions a policy is; if it does not say, of ingress,
// and of egress if it has a rule for it.
func isolates(s *networkingv1.NetworkPolicySpec, egress bool) bool {
	kind := networkingv1.PolicyTypeIngress
	if egress {
		kind = networkingv1.PolicyTypeEgress
	}
	if len(s.PolicyTypes) > 0 {
		return slices.Contains(s.PolicyTypes, kind)
	}
	return !egress || len(s.Egress) > 0
}

func selects(s *metav1.LabelSelector, set map[string]string) bool {
	sel, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && sel.Matches(labels.Set(set))
}

// allows tells by which rule a policy lets a packet pass.
func (w *World) allows(policy *policyfeed.Policy, egress bool, p Packet) (rule int, ok bool) {
	if egress {
		for i, r := range policy.Spec.Egress {
			if w.peers(policy.Namespace, r.To, p.To) && w.ports(r.Ports, p, isBlockOnly(r.To, p.To, w, policy.Namespace)) {
				return i, true
			}
		}
		return 0, false
	}
	for i, r := range policy.Spec.Ingress {
		if w.peers(policy.Namespace, r.From, p.From) && w.ports(r.Ports, p, false) {
			return i, true
		}
	}
	return 0, false
}

// isBlockOnly tells that a rule names a destination by blocks of addresses alone:
// ports have no names there.
func isBlockOnly(list []networkingv1.NetworkPolicyPeer, a netip.Addr, w *World, namespace string) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, func(peer networkingv1.NetworkPolicyPeer) bool {
		return peer.IPBlock == nil && w.peer(namespace, &peer, a)
	})
}

// peers tells whether an address is one of the list; no list is everybody.
func (w *World) peers(namespace string, list []networkingv1.NetworkPolicyPeer, a netip.Addr) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(peer networkingv1.NetworkPolicyPeer) bool {
		return w.peer(namespace, &peer, a)
	})
}

func (w *World) peer(namespace string, peer *networkingv1.NetworkPolicyPeer, a netip.Addr) bool {
	if b := peer.IPBlock; b != nil {
		in := func(cidr string) bool {
			p, err := netip.ParsePrefix(cidr)
			return err == nil && p.Contains(a)
		}
		return in(b.CIDR) && !slices.ContainsFunc(b.Except, in)
	}
	pod := w.podAt(a)
	if pod == nil || peer.PodSelector == nil && peer.NamespaceSelector == nil {
		return false
	}
	if peer.NamespaceSelector == nil {
		return pod.Namespace == namespace && selects(peer.PodSelector, pod.Labels)
	}
	return selects(peer.NamespaceSelector, w.Namespaces[pod.Namespace]) &&
		(peer.PodSelector == nil || selects(peer.PodSelector, pod.Labels))
}

// ports tells whether a packet's port is one of the list; no list is every packet,
// also of protocols without ports.
func (w *World) ports(list []networkingv1.NetworkPolicyPort, p Packet, nameless bool) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(port networkingv1.NetworkPolicyPort) bool {
		proto := nft.Proto("TCP")
		if port.Protocol != nil {
			proto = nft.Proto(string(*port.Protocol))
		}
		switch {
		case proto != p.Protocol:
			return false
		case port.Port == nil:
			return true
		case port.Port.Type == intstr.String:
			to := w.podAt(p.To)
			return to != nil && !nameless && slices.Contains(numbersOf(to, port.Port.StrVal, proto), p.Port)
		}
		last := port.Port.IntVal
		if port.EndPort != nil {
			last = *port.EndPort
		}
		return port.Port.IntVal <= int32(p.Port) && int32(p.Port) <= last
	})
}
