package gateway

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// The names by which classes ask for this implementation.
const (
	// Controller is spec.controllerName of a GatewayClass.
	Controller = "shoal-project.io/gateway"
	// IngressController is spec.controller of an IngressClass.
	IngressController = "shoal-project.io/ingress"
)

// World is what the API has. Nothing of it is changed.
type World struct {
	Classes     []*gatewayv1.GatewayClass
	Gateways    []*gatewayv1.Gateway
	Sets        []*gatewayv1.ListenerSet
	HTTPRoutes  []*gatewayv1.HTTPRoute
	GRPCRoutes  []*gatewayv1.GRPCRoute
	TLSRoutes   []*gatewayv1.TLSRoute
	TCPRoutes   []*gatewayv1.TCPRoute
	UDPRoutes   []*gatewayv1.UDPRoute
	Grants      []*gatewayv1.ReferenceGrant
	TLSPolicies []*gatewayv1.BackendTLSPolicy

	IngressClasses []*networkingv1.IngressClass
	Ingresses      []*networkingv1.Ingress

	Nodes []*corev1.Node
	// Owned are the Services that this package asked for, by what it called them.
	Owned []*corev1.Service
	// Numbers are those of the plan before; nil: there was none.
	Numbers Numbers

	// What references lead to; nil: there is none.
	Namespace func(name string) *corev1.Namespace
	Service   func(types.NamespacedName) *corev1.Service
	Secret    func(types.NamespacedName) *corev1.Secret
	ConfigMap func(types.NamespacedName) *corev1.ConfigMap
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// byAge orders objects as the API wants conflicts decided: the oldest first, then by name.
func byAge[T metav1.Object](list []T) []T {
	out := slices.Clone(list)
	slices.SortFunc(out, func(a, b T) int {
		return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time),
			cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return out
}

// admits tells whether a namespace is one of those that a listener or gateway lets in.
func (w *World) admits(from gatewayv1.FromNamespaces, selector *metav1.LabelSelector, own, namespace string) bool {
	switch from {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSame:
		return own == namespace
	case gatewayv1.NamespacesFromSelector:
		s, err := metav1.LabelSelectorAsSelector(selector)
		n := w.Namespace(namespace)
		return err == nil && n != nil && s.Matches(labels.Set(n.Labels))
	}
	return false
}

// reference is from where to where an object refers.
type reference struct {
	group, kind, namespace       string
	toGroup, toKind, toNamespace string
	toName                       string
}

// permitted tells whether the namespace that is referred to lets it happen.
func (w *World) permitted(r reference) bool {
	if r.namespace == r.toNamespace {
		return true
	}
	for _, g := range w.Grants {
		if g.Namespace != r.toNamespace {
			continue
		}
		from := slices.ContainsFunc(g.Spec.From, func(f gatewayv1.ReferenceGrantFrom) bool {
			return string(f.Group) == r.group && string(f.Kind) == r.kind && string(f.Namespace) == r.namespace
		})
		to := slices.ContainsFunc(g.Spec.To, func(t gatewayv1.ReferenceGrantTo) bool {
			return string(t.Group) == r.toGroup && string(t.Kind) == r.toKind && (t.Name == nil || *t.Name == "" ||
				string(*t.Name) == r.toName)
		})
		if from && to {
			return true
		}
	}
	return false
}

func deref[T any](p *T, def T) T {
	if p == nil {
		return def
	}
	return *p
}
