package gateway

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Features are those of the Gateway API that the class says it has, in the order of their
// names. What the conformance suite does not see pass is not in it.
var Features = []string{
	"GRPCRoute",
	"Gateway",
	"HTTPRoute",
	"ReferenceGrant",
	"TLSRoute",
}

func byName(list []*corev1.Node) []*corev1.Node {
	out := slices.Clone(list)
	slices.SortFunc(out, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
