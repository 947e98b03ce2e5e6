package policy

import (
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/shoal-project/shoal/agent/policyfeed"
	"github.com/shoal-project/shoal/cni/nft"
)

// parsed is a policy in the form that pods are compiled by.
type parsed struct {
	key Key
	// generation tells one version from the next in this process.
	generation uint64
	pods       labels.Selector
	sides      [2]bool // isolates
	rules      [2][]rule
	named      bool // a rule names a port
}

// The sides of a pod.
const (
	ingress = iota
	egress
)

// rule lets pass what is of a peer and a port.
type rule struct {
	anyPeer bool
	peers   []peers
	blocks  []span // of both families, apart
	anyPort bool
	ports   []ports
}

// peers are the pods that a selector means.
type peers struct {
	namespace  string // the policy's own; empty: by namespaces
	namespaces labels.Selector
	pods       labels.Selector
}

// id is the same for selectors that mean the same.
func (p peers) id() string {
	if p.namespaces == nil {
		return "in " + p.namespace + ": " + p.pods.String()
	}
	return "where " + p.namespaces.String() + ": " + p.pods.String()
}

// everyPod are the pods of all namespaces.
var everyPod = peers{namespaces: labels.Everything(), pods: labels.Everything()}

// ports are some of a protocol.
type ports struct {
	proto       uint8
	all         bool
	first, last uint16
	name        string // of each destination's own
}

// span is the addresses from first to last.
type span struct{ first, last netip.Addr }

// parse reads a policy. What the API server would not have taken allows nothing.
func parse(p *policyfeed.Policy, generation uint64) (*parsed, error) {
	pods, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
	if err != nil {
		return nil, fmt.Errorf("podSelector: %w", err)
	}
	out := &parsed{key: p.Key, generation: generation, pods: pods,
		sides: [2]bool{isolates(&p.Spec, false), isolates(&p.Spec, true)}}
	for _, r := range p.Spec.Ingress {
		out.rules[ingress] = append(out.rules[ingress], parseRule(p.Namespace, r.From, r.Ports))
	}
	for _, r := range p.Spec.Egress {
		out.rules[egress] = append(out.rules[egress], parseRule(p.Namespace, r.To, r.Ports))
	}
	for _, side := range out.rules {
		for _, r := range side {
			out.named = out.named || slices.ContainsFunc(r.ports, func(p ports) bool { return p.name != "" })
		}
	}
	return out, nil
}

func parseRule(
	namespace string, from []networkingv1.NetworkPolicyPeer, list []networkingv1.NetworkPolicyPort,
) rule {
	r := rule{anyPeer: len(from) == 0, anyPort: len(list) == 0}
	for _, p := range from {
		if p.IPBlock != nil {
			r.blocks = append(r.blocks, blockSpans(p.IPBlock)...)
			continue
		}
		if s, ok := parsePeers(namespace, p); ok {
			r.peers = append(r.peers, s)
		}
	}
	r.blocks = merge(r.blocks)
	for _, p := range list {
		if s, ok := parsePorts(p); ok {
			r.ports = append(r.ports, s)
		}
	}
	return r
}

func parsePeers(namespace string, p networkingv1.NetworkPolicyPeer) (out peers, ok bool) {
	var err error
	out.namespace, out.pods = namespace, labels.Everything()
	if p.PodSelector == nil && p.NamespaceSelector == nil {
		return out, false
	}
	if p.PodSelector != nil {
		if out.pods, err = metav1.LabelSelectorAsSelector(p.PodSelector); err != nil {
			return out, false
		}
	}
	if p.NamespaceSelector != nil {
		out.namespace = ""
		if out.namespaces, err = metav1.LabelSelectorAsSelector(p.NamespaceSelector); err != nil {
			return out, false
		}
	}
	return out, true
}

func parsePorts(p networkingv1.NetworkPolicyPort) (out ports, ok bool) {
	out.proto = nft.Proto("TCP")
	if p.Protocol != nil {
		out.proto = nft.Proto(string(*p.Protocol))
	}
	switch {
	case out.proto == 0:
		return out, false
	case p.Port == nil:
		out.all = true
	case p.Port.Type == intstr.String:
		out.name = p.Port.StrVal
	default:
		first, last := p.Port.IntVal, p.Port.IntVal
		if p.EndPort != nil {
			last = *p.EndPort
		}
		if first < 0 || first > last || last > 65535 {
			return out, false
		}
		out.first, out.last = uint16(first), uint16(last)
	}
	return out, true
}

// blockSpans is a block without its exceptions.
func blockSpans(b *networkingv1.IPBlock) []span {
	p, err := netip.ParsePrefix(b.CIDR)
	if err != nil || p.Addr().Is4In6() {
		return nil
	}
	var except []span
	for _, s := range b.Except {
		if e, err := netip.ParsePrefix(s); err == nil && e.Addr().BitLen() == p.Addr().BitLen() {
			except = append(except, spanOf(e))
		}
	}
	left := spanOf(p)
	var out []span
	for _, e := range merge(except) {
		if e.last.Less(left.first) || left.last.Less(e.first) {
			continue
		}
		if left.first.Less(e.first) {
			out = append(out, span{left.first, e.first.Prev()})
		}
		if !e.last.Less(left.last) {
			return out
		}
		left.first = e.last.Next()
	}
	return append(out, left)
}

func spanOf(p netip.Prefix) span {
	first := p.Masked().Addr()
	b := first.AsSlice()
	for bit := p.Bits(); bit < first.BitLen(); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return span{first, last}
}

// merge sorts spans and joins those that meet or touch.
func merge(list []span) (out []span) {
	slices.SortFunc(list, func(a, b span) int { return a.first.Compare(b.first) })
	for _, s := range list {
		if n := len(out) - 1; n >= 0 && out[n].first.BitLen() == s.first.BitLen() {
			if next := out[n].last.Next(); !next.IsValid() || !next.Less(s.first) {
				if out[n].last.Less(s.last) {
					out[n].last = s.last
				}
				continue
			}
		}
		out = append(out, s)
	}
	return out
}

// mergePorts sorts ranges and joins those that meet or touch.
func mergePorts(list [][2]uint16) (out [][2]uint16) {
	slices.SortFunc(list, func(a, b [2]uint16) int { return int(a[0]) - int(b[0]) })
	for _, r := range list {
		if n := len(out) - 1; n >= 0 && int(r[0]) <= int(out[n][1])+1 {
			out[n][1] = max(out[n][1], r[1])
			continue
		}
		out = append(out, r)
	}
	return out
}
