package stats

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/host"
)

// BenchmarkContainers writes /metrics/cadvisor of 500 pods, without what measuring them takes.
func BenchmarkContainers(b *testing.B) {
	disk := cgroup.Disk{Major: 254, ReadBytes: 4096, WrittenBytes: 8192, Reads: 1, Writes: 2}
	stall := &host.Pressure{Some: host.PSI{Total: 1234567}, Full: host.PSI{Total: 34567}}
	var list []Group
	for i := range 500 {
		pod := Group{
			Namespace: "default", Pod: fmt.Sprintf("web-7d4b9c6f5-%05d", i), Created: time.Now(), Processes: 2,
			Path: fmt.Sprintf("/kubepods/burstable/pod%08d-0000-4000-8000-000000000000", i),
			Use: cgroup.Stats{Time: time.Now(), CPUNanos: 1e9, Memory: 1e7, CPUStall: stall, MemoryStall: stall,
				IOStall: stall},
			Disks: []cgroup.Disk{disk}, Known: KnowsAll, Interfaces: []Interface{{Name: "eth0"}},
		}
		container := pod
		container.Container, container.ContainerID = "web", fmt.Sprintf("%064d", i)
		container.Image, container.Path = "registry.example.com/team/web:1.2.3", pod.Path+"/"+container.ContainerID
		container.Interfaces, container.Limits = nil, &criv1.LinuxContainerResources{CpuPeriod: 100000, CpuShares: 2}
		list = append(list, pod, container)
	}
	p := &Provider{Groups: func(context.Context) []Group { return list }}
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Containers(context.Background(), io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
