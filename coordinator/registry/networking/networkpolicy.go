package networking

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

func networkPolicy() kind.Kind {
	type T = networkingv1.NetworkPolicy
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "networkpolicies", Singular: "networkpolicy", ShortNames: []string{"netpol"},
			List: &networkingv1.NetworkPolicyList{},
		},
		Default:  defaultNetworkPolicy,
		Validate: func(_ context.Context, n *T) field.ErrorList { return validateNetworkPolicy(&n.Spec, nil) },
		ValidateUpdate: func(_ context.Context, n, old *T) field.ErrorList {
			return validateNetworkPolicy(&n.Spec, &old.Spec)
		},
		Warnings:    func(_ context.Context, n, _ *T) []string { return cidrWarnings(&n.Spec) },
		Spec:        func(n *T) any { return &n.Spec },
		CountsEmpty: true,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Pod-Selector", "string", networkingv1.NetworkPolicySpec{}.SwaggerDoc()["podSelector"]),
			kind.AgeColumn(),
		},
		Row: func(n *T) []any {
			return []any{n.Name, metav1.FormatLabelSelector(&n.Spec.PodSelector), kind.Age(n.CreationTimestamp)}
		},
	}.Kind()
}

func defaultNetworkPolicy(n *networkingv1.NetworkPolicy) {
	spec := &n.Spec
	for _, r := range rulesOf(spec) {
		for i := range r.ports {
			if r.ports[i].Protocol == nil {
				tcp := corev1.ProtocolTCP
				r.ports[i].Protocol = &tcp
			}
		}
	}
	if len(spec.PolicyTypes) == 0 {
		spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(spec.Egress) > 0 {
			spec.PolicyTypes = append(spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
}

// policyRule is a rule of either direction.
type policyRule struct {
	at        *field.Path
	peersName string
	ports     []networkingv1.NetworkPolicyPort
	peers     []networkingv1.NetworkPolicyPeer
}

func rulesOf(spec *networkingv1.NetworkPolicySpec) []policyRule {
	var out []policyRule
	p := field.NewPath("spec")
	for i, r := range spec.Ingress {
		out = append(out, policyRule{at: p.Child("ingress").Index(i), peersName: "from", ports: r.Ports, peers: r.From})
	}
	for i, r := range spec.Egress {
		out = append(out, policyRule{at: p.Child("egress").Index(i), peersName: "to", ports: r.Ports, peers: r.To})
	}
	return out
}

// validateNetworkPolicy checks a spec; CIDRs that old (nil for a create) had may
// stay in forms that were valid once.
func validateNetworkPolicy(spec, old *networkingv1.NetworkPolicySpec) (errs field.ErrorList) {
	p := field.NewPath("spec")
	selectors := metavalidation.LabelSelectorValidationOptions{}
	var known []string
	if old != nil {
		selectors.AllowInvalidLabelValueInSelector = len(
			metavalidation.ValidateLabelSelector(&old.PodSelector, selectors, nil)) > 0
		known = cidrsOf(old)
	}
	errs = metavalidation.ValidateLabelSelector(&spec.PodSelector, selectors, p.Child("podSelector"))
	for _, r := range rulesOf(spec) {
		for i := range r.ports {
			errs = append(errs, validatePolicyPort(&r.ports[i], r.at.Child("ports").Index(i))...)
		}
		for i := range r.peers {
			errs = append(errs,
				validatePeer(&r.peers[i], peerOptions{selectors, known}, r.at.Child(r.peersName).Index(i))...)
		}
	}
	types := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	if len(spec.PolicyTypes) > len(types) {
		return append(errs, field.Invalid(p.Child("policyTypes"), spec.PolicyTypes, "may not specify more than two policyTypes"))
	}
	for i, t := range spec.PolicyTypes {
		if !slices.Contains(types, t) {
			errs = append(errs, field.NotSupported(p.Child("policyTypes").Index(i), t, types))
		}
	}
	return errs
}

func cidrsOf(spec *networkingv1.NetworkPolicySpec) (out []string) {
	for _, r := range rulesOf(spec) {
		for i := range r.peers {
			if b := r.peers[i].IPBlock; b != nil {
				out = append(append(out, b.CIDR), b.Except...)
			}
		}
	}
	return out
}

func validatePolicyPort(port *networkingv1.NetworkPolicyPort, p *field.Path) (errs field.ErrorList) {
	protocols := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	if port.Protocol != nil && !slices.Contains(protocols, *port.Protocol) {
		errs = append(errs, field.NotSupported(p.Child("protocol"), *port.Protocol, protocols))
	}
	switch {
	case port.Port == nil:
		if port.EndPort != nil {
			errs = append(errs, field.Invalid(p.Child("endPort"), *port.EndPort, "may not be specified when `port` is not specified"))
		}
	case port.Port.Type == intstr.Int:
		errs = append(errs,
			fieldrule.Invalid(p.Child("port"), port.Port.IntVal, validation.IsValidPortNum(int(port.Port.IntVal)))...)
		if port.EndPort == nil {
			break
		}
		if *port.EndPort < port.Port.IntVal {
			errs = append(errs, field.Invalid(p.Child("endPort"), port.Port.IntVal, "must be greater than or equal to `port`"))
		}
		errs = append(errs,
			fieldrule.Invalid(p.Child("endPort"), *port.EndPort, validation.IsValidPortNum(int(*port.EndPort)))...)
	default:
		if port.EndPort != nil {
			errs = append(errs, field.Invalid(p.Child("endPort"), *port.EndPort, "may not be specified when `port` is non-numeric"))
		}
		errs = append(errs,
			fieldrule.Invalid(p.Child("port"), port.Port.StrVal, validation.IsValidPortName(port.Port.StrVal))...)
	}
	return errs
}

type peerOptions struct {
	selectors  metavalidation.LabelSelectorValidationOptions
	knownCIDRs []string
}

func validatePeer(peer *networkingv1.NetworkPolicyPeer, o peerOptions, p *field.Path) (errs field.ErrorList) {
	selects := peer.PodSelector != nil || peer.NamespaceSelector != nil
	if peer.PodSelector != nil {
		errs = append(errs,
			metavalidation.ValidateLabelSelector(peer.PodSelector, o.selectors, p.Child("podSelector"))...)
	}
	if peer.NamespaceSelector != nil {
		errs = append(errs,
			metavalidation.ValidateLabelSelector(peer.NamespaceSelector, o.selectors, p.Child("namespaceSelector"))...)
	}
	if peer.IPBlock != nil {
		errs = append(errs, validateBlock(peer.IPBlock, o.knownCIDRs, p.Child("ipBlock"))...)
	}
	switch {
	case !selects && peer.IPBlock == nil:
		errs = append(errs, field.Required(p, "must specify a peer"))
	case selects && peer.IPBlock != nil:
		errs = append(errs, field.Forbidden(p, "may not specify both ipBlock and another peer"))
	}
	return errs
}

func validateBlock(b *networkingv1.IPBlock, known []string, p *field.Path) field.ErrorList {
	if b.CIDR == "" {
		return field.ErrorList{field.Required(p.Child("cidr"), "")}
	}
	errs := validation.IsValidCIDRForLegacyField(p.Child("cidr"), b.CIDR, true, known)
	_, block, err := netutils.ParseCIDRSloppy(b.CIDR)
	if err != nil {
		return errs
	}
	bits, _ := block.Mask.Size()
	for i, s := range b.Except {
		errs = append(errs, validation.IsValidCIDRForLegacyField(p.Child("except").Index(i), s, true, known)...)
		_, except, err := netutils.ParseCIDRSloppy(s)
		if err != nil {
			continue
		}
		if exceptBits, _ := except.Mask.Size(); !block.Contains(except.IP) || bits >= exceptBits {
			errs = append(errs, field.Invalid(p.Child("except").Index(i), s, "must be a strict subset of `cidr`"))
		}
	}
	return errs
}

func cidrWarnings(spec *networkingv1.NetworkPolicySpec) (out []string) {
	for _, r := range rulesOf(spec) {
		for i := range r.peers {
			b, p := r.peers[i].IPBlock, r.at.Child(r.peersName).Index(i).Child("ipBlock")
			if b == nil {
				continue
			}
			out = append(out, validation.GetWarningsForCIDR(p.Child("cidr"), b.CIDR)...)
			for k, except := range b.Except {
				out = append(out, validation.GetWarningsForCIDR(p.Child("except").Index(k), except)...)
			}
		}
	}
	return out
}
