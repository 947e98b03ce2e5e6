package node

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Handlers is status.runtimeHandlers of what the CRI says that it can run
// (KEP-3857, KEP-127), in the order of the names, so that it does not change by
// itself.
func Handlers(list []*runtimeapi.RuntimeHandler) []v1.NodeRuntimeHandler {
	var out []v1.NodeRuntimeHandler
	for _, h := range list {
		f := h.GetFeatures()
		mounts, users := f.GetRecursiveReadOnlyMounts(), f.GetUserNamespaces()
		out = append(out, v1.NodeRuntimeHandler{
			Name: h.GetName(), Features: &v1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &mounts, UserNamespaces: &users},
		})
	}
	slices.SortFunc(out, func(a, b v1.NodeRuntimeHandler) int { return strings.Compare(a.Name, b.Name) })
	return out
}
