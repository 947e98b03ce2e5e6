package outside

import (
	"context"
	"slices"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListPodSandboxStats is the runtime's, without containers that have ended: containerd tells of
// them as long as they are not removed, each run of a container under the same name.
func (r *Runtime) ListPodSandboxStats(
	ctx context.Context, filter *criv1.PodSandboxStatsFilter,
) ([]*criv1.PodSandboxStats, error) {
	list, err := r.RuntimeService.ListPodSandboxStats(ctx, filter)
	for _, s := range list {
		if s.GetLinux() != nil {
			s.Linux.Containers = running(s.Linux.Containers)
		}
	}
	return list, err
}

// running are the newest runs of containers that use anything.
func running(list []*criv1.ContainerStats) []*criv1.ContainerStats {
	attempt := func(c *criv1.ContainerStats) uint32 { return c.GetAttributes().GetMetadata().GetAttempt() }
	newest := map[string]uint32{}
	for _, c := range list {
		name := c.GetAttributes().GetMetadata().GetName()
		newest[name] = max(newest[name], attempt(c))
	}
	return slices.DeleteFunc(list, func(c *criv1.ContainerStats) bool {
		name := c.GetAttributes().GetMetadata().GetName()
		return attempt(c) < newest[name] || c.GetCpu() == nil && c.GetMemory() == nil
	})
}
