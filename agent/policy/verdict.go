package policy

import (
	"cmp"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

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
}

// Allows tells whether the end lets the packet pass.
func (s *Side) Allows() bool { return len(s.Isolating) == 0 || s.By != "" }

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
	return s
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
