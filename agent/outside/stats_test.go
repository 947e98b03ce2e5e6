package outside

import (
	"context"
	"fmt"
	"testing"

	criapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// measured is a runtime with one pod.
type measured struct {
	criapi.RuntimeService
	containers []*criv1.ContainerStats
}

func (m *measured) ListPodSandboxStats(
	context.Context, *criv1.PodSandboxStatsFilter,
) ([]*criv1.PodSandboxStats, error) {
	return []*criv1.PodSandboxStats{{Linux: &criv1.LinuxPodSandboxStats{Containers: m.containers}}, {}}, nil
}

// TestStatsOfContainersThatRun: a container is measured once, whatever is left of its earlier runs.
func TestStatsOfContainersThatRun(t *testing.T) {
	run := func(name string, attempt uint32, uses bool) *criv1.ContainerStats {
		c := &criv1.ContainerStats{Attributes: &criv1.ContainerAttributes{
			Metadata: &criv1.ContainerMetadata{Name: name, Attempt: attempt}}}
		if uses {
			c.Cpu = &criv1.CpuUsage{}
		}
		return c
	}
	r := &Runtime{RuntimeService: &measured{containers: []*criv1.ContainerStats{
		run("init", 0, false), run("a", 1, true), run("a", 0, false), run("b", 0, true), run("a", 2, true),
	}}}
	list, err := r.ListPodSandboxStats(t.Context(), nil)
	if err != nil || len(list) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	got := ""
	for _, c := range list[0].Linux.Containers {
		got += fmt.Sprintf("%s%d ", c.Attributes.Metadata.Name, c.Attributes.Metadata.Attempt)
	}
	if got != "b0 a2 " {
		t.Errorf("%q", got)
	}
}
