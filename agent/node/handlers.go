package node

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Handlers is status.runtimeHandlers of what the CRI says that it can run
// (KEP-3857, KEP-127), in the order of the names, so that it does not change by
// itself.
func Handlers(list []*criv1.RuntimeHandler) []corev1.NodeRuntimeHandler {
	var out []corev1.NodeRuntimeHandler
	for _, h := range list {
		f := h.GetFeatures()
		mounts, users := f.GetRecursiveReadOnlyMounts(), f.GetUserNamespaces()
		out = append(out, corev1.NodeRuntimeHandler{
			Name:     h.GetName(),
			Features: &corev1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &mounts, UserNamespaces: &users},
		})
	}
	slices.SortFunc(out, func(a, b corev1.NodeRuntimeHandler) int { return strings.Compare(a.Name, b.Name) })
	return out
}
