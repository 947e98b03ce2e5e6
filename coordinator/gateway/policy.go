package gateway

import (
	"errors"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// policies are the BackendTLSPolicies of Services.
type policies struct {
	all  []*policy
	port map[types.NamespacedName]map[string]*policy // by Service and the port's name, "" for all
}

// policy is one, with what became of it.
type policy struct {
	obj      *gatewayv1.BackendTLSPolicy
	accepted verdict
	resolved verdict
	feed     *gatewayfeed.BackendTLS // nil: its backends cannot be verified
	targets  []types.NamespacedName
	gateways map[*gateway]bool
}

// of is the policy for a port of a Service; the one that names the port counts.
func (p *policies) of(svc types.NamespacedName, port string) *policy {
	if one := p.port[svc][port]; one != nil {
		return one
	}
	return p.port[svc][""]
}

// used notes that a gateway's routes lead to a Service.
func (p *policies) used(svc types.NamespacedName, g *gateway) {
	for _, one := range p.all {
		if slices.Contains(one.targets, svc) {
			one.gateways[g] = true
		}
	}
}

// tlsPolicies decides which count, the oldest first.
func (c *compiler) tlsPolicies() {
	c.policies.port = map[types.NamespacedName]map[string]*policy{}
	for _, obj := range byAge(c.TLSPolicies) {
		p := &policy{obj: obj.DeepCopy(), gateways: map[*gateway]bool{},
			accepted: yes(gatewayv1.PolicyReasonAccepted), resolved: yes(gatewayv1.BackendTLSPolicyReasonResolvedRefs)}
		c.verification(p)
		conflicts, counts := 0, 0
		for _, t := range obj.Spec.TargetRefs {
			if t.Group != "" || t.Kind != "Service" {
				continue
			}
			svc := types.NamespacedName{Namespace: obj.Namespace, Name: string(t.Name)}
			p.targets = append(p.targets, svc)
			section := string(deref(t.SectionName, ""))
			if c.policies.port[svc] == nil {
				c.policies.port[svc] = map[string]*policy{}
			}
			counts++
			if c.policies.port[svc][section] != nil {
				conflicts++
				continue
			}
			c.policies.port[svc][section] = p
		}
		if counts > 0 && conflicts == counts && p.accepted.ok {
			p.accepted = no(gatewayv1.PolicyReasonConflicted, "an older policy is for the same Services")
		}
		c.policies.all = append(c.policies.all, p)
	}
}

// verification is how the policy has backends verified.
func (c *compiler) verification(p *policy) {
	v := &p.obj.Spec.Validation
	feed := &gatewayfeed.BackendTLS{Hostname: string(v.Hostname)}
	for _, s := range v.SubjectAltNames {
		if s.Type == gatewayv1.URISubjectAltNameType {
			feed.URIs = append(feed.URIs, string(s.URI))
		} else {
			feed.Names = append(feed.Names, string(s.Hostname))
		}
	}
	if v.WellKnownCACertificates != nil {
		if *v.WellKnownCACertificates != gatewayv1.WellKnownCACertificatesSystem {
			p.accepted = no(gatewayv1.PolicyReasonInvalid, "wellKnownCACertificates is System or nothing")
			return
		}
		feed.System = true
	}
	for _, ref := range v.CACertificateRefs {
		name, err := c.authority(string(ref.Group), string(ref.Kind), types.NamespacedName{Namespace: p.obj.Namespace,
			Name: string(ref.Name)}, nil)
		switch {
		case err == nil:
			feed.Authorities = append(feed.Authorities, name)
		case errors.Is(err, errKind):
			p.resolved = no(gatewayv1.BackendTLSPolicyReasonInvalidKind, "a CA certificate is in a ConfigMap or Secret")
		default:
			p.resolved = no(gatewayv1.BackendTLSPolicyReasonInvalidCACertificateRef, err.Error())
		}
	}
	if !feed.System && len(feed.Authorities) == 0 {
		p.accepted = no(gatewayv1.BackendTLSPolicyReasonNoValidCACertificate, "no CA certificate is valid")
		return
	}
	p.feed = feed
}

// policyStatuses tells policies what became of them, for each gateway that they concern.
func (c *compiler) policyStatuses() {
	for _, p := range c.policies.all {
		old := p.obj.Status.Ancestors
		p.obj.Status.Ancestors = slices.DeleteFunc(slices.Clone(old),
			func(a gatewayv1.PolicyAncestorStatus) bool { return a.ControllerName == Controller })
		for _, g := range c.order {
			// The API takes 16 of them (PolicyStatus).
			if !p.gateways[g] || len(p.obj.Status.Ancestors) >= 16 {
				continue
			}
			namespace := gatewayv1.Namespace(g.obj.Namespace)
			st := gatewayv1.PolicyAncestorStatus{ControllerName: Controller, AncestorRef: gatewayv1.ParentReference{
				Group: new(gatewayv1.Group(gatewayv1.GroupName)), Kind: new(gatewayv1.Kind("Gateway")),
				Namespace: &namespace,
				Name:      gatewayv1.ObjectName(g.obj.Name)}}
			for _, o := range old {
				if o.ControllerName == Controller && sameParent(o.AncestorRef, st.AncestorRef) {
					st.Conditions = slices.Clone(o.Conditions)
				}
			}
			c.policyConditions(p, &st.Conditions)
			p.obj.Status.Ancestors = append(p.obj.Status.Ancestors, st)
		}
		if p.obj.Status.Ancestors == nil {
			p.obj.Status.Ancestors = []gatewayv1.PolicyAncestorStatus{}
		}
		if len(p.obj.Status.Ancestors) > 0 || len(old) > 0 {
			c.plan.Policies = append(c.plan.Policies, p.obj)
		}
	}
}

func (c *compiler) policyConditions(p *policy, list *[]metav1.Condition) {
	c.set(list, p.obj.Generation, string(gatewayv1.PolicyConditionAccepted), p.accepted)
	c.set(list, p.obj.Generation, string(gatewayv1.BackendTLSPolicyConditionResolvedRefs), p.resolved)
}
