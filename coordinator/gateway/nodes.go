package gateway

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Parameters of a Gateway, GatewayClass or IngressClass are a ConfigMap with this field: a
// selector of labels, as kubectl's -l takes it, that says which nodes answer.
const (
	parameterNodes = "nodeSelector"
	// selectorMost bounds it: it is compared with every node.
	selectorMost = 4096
)

// selection are the nodes that answer for something; nil: all that have the proxy.
type selection struct {
	text  string
	nodes map[string]bool
}

func (s *selection) has(node string) bool { return s == nil || s.nodes[node] }

// empty tells of a selection that no node answers to.
func (s *selection) empty() bool { return s != nil && len(s.nodes) == 0 }

// Parameters are the ConfigMaps that parameters of ours are said to be in, there or not.
func (w *World) Parameters() map[types.NamespacedName]bool {
	out := map[types.NamespacedName]bool{}
	ours := map[gatewayv1.ObjectName]bool{}
	for _, class := range w.Classes {
		if class.Spec.ControllerName == Controller {
			ours[gatewayv1.ObjectName(class.Name)] = true
			if ref, err := classParameters(class); err == nil && ref != nil {
				out[*ref] = true
			}
		}
	}
	for _, g := range w.Gateways {
		if ref, err := gatewayParameters(g); ours[g.Spec.GatewayClassName] && err == nil && ref != nil {
			out[*ref] = true
		}
	}
	for _, class := range w.IngressClasses {
		if ref, err := ingressParameters(class); class.Spec.Controller == IngressController && err == nil && ref != nil {
			out[*ref] = true
		}
	}
	return out
}

// classParameters is where a class's are; nil: it has none.
func classParameters(class *gatewayv1.GatewayClass) (*types.NamespacedName, error) {
	p := class.Spec.ParametersRef
	switch {
	case p == nil:
		return nil, nil
	case p.Group != "" || p.Kind != "ConfigMap":
		return nil, fmt.Errorf("parameters are in a ConfigMap, not in a %s", kindOf(string(p.Group), string(p.Kind)))
	case deref(p.Namespace, "") == "":
		return nil, fmt.Errorf("the reference to ConfigMap %s has no namespace", p.Name)
	}
	return &types.NamespacedName{Namespace: string(*p.Namespace), Name: p.Name}, nil
}

// gatewayParameters are in the Gateway's namespace.
func gatewayParameters(g *gatewayv1.Gateway) (*types.NamespacedName, error) {
	if g.Spec.Infrastructure == nil || g.Spec.Infrastructure.ParametersRef == nil {
		return nil, nil
	}
	p := g.Spec.Infrastructure.ParametersRef
	if p.Group != "" || p.Kind != "ConfigMap" {
		return nil, fmt.Errorf("parameters are in a ConfigMap, not in a %s", kindOf(string(p.Group), string(p.Kind)))
	}
	return &types.NamespacedName{Namespace: g.Namespace, Name: p.Name}, nil
}

func ingressParameters(class *networkingv1.IngressClass) (*types.NamespacedName, error) {
	p := class.Spec.Parameters
	switch {
	case p == nil:
		return nil, nil
	case deref(p.APIGroup, "") != "" || p.Kind != "ConfigMap":
		return nil, fmt.Errorf("parameters are in a ConfigMap, not in a %s", kindOf(deref(p.APIGroup, ""), p.Kind))
	case deref(p.Scope, networkingv1.IngressClassParametersReferenceScopeCluster) !=
		networkingv1.IngressClassParametersReferenceScopeNamespace || deref(p.Namespace, "") == "":
		return nil, fmt.Errorf("the reference to ConfigMap %s has not the scope Namespace, with a namespace", p.Name)
	}
	return &types.NamespacedName{Namespace: *p.Namespace, Name: p.Name}, nil
}

func kindOf(group, kind string) string {
	if group == "" {
		return kind
	}
	return kind + "." + group
}

// selected reads parameters; nil: there are none, and all nodes answer. What cannot be read
// never means all nodes: they would be told certificates' keys.
func (c *compiler) selected(ref *types.NamespacedName, err error) (*selection, error) {
	if ref == nil || err != nil {
		return nil, err
	}
	m := c.ConfigMap(*ref)
	if m == nil {
		return nil, fmt.Errorf("there is no ConfigMap %s", ref)
	}
	for _, name := range append(slices.Sorted(maps.Keys(m.Data)), slices.Sorted(maps.Keys(m.BinaryData))...) {
		if _, text := m.Data[name]; name != parameterNodes || !text {
			return nil, fmt.Errorf("ConfigMap %s: unknown field %q", ref, name)
		}
	}
	text := strings.TrimSpace(m.Data[parameterNodes])
	if text == "" {
		return nil, fmt.Errorf("ConfigMap %s has no %s", ref, parameterNodes)
	}
	if len(text) > selectorMost {
		return nil, fmt.Errorf("ConfigMap %s: %s is longer than %d bytes", ref, parameterNodes, selectorMost)
	}
	if s := c.selections[text]; s != nil {
		return s, nil
	}
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s: %s: %w", ref, parameterNodes, err)
	}
	s := &selection{text: text, nodes: map[string]bool{}}
	for _, n := range c.World.Nodes {
		if serves(n) && selector.Matches(labels.Set(n.Labels)) {
			s.nodes[n.Name] = true
		}
	}
	c.selections[text] = s
	return s, nil
}

// held is the Service of something whose parameters are wrong: it stays, with its addresses,
// and leads nowhere until they are right.
func held(s *corev1.Service) *Wanted { return &Wanted{Service: s, Known: s} }
