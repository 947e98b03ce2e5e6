package runtime

import (
	"slices"
	"testing"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestMeasure: a running container and its pod are measured, and go with it.
func TestMeasure(t *testing.T) {
	g := newRig(t)
	g.importImage()
	config := g.podConfig()
	pod := g.run(config)
	loop := shell("main", "while :; do sleep 0.1; done")
	loop.Linux.Resources = &criv1.LinuxContainerResources{CpuShares: 2}
	id := g.start(pod, loop)
	var measured []Measurement
	eventually(t, "what the container uses", func() bool {
		measured = g.r.Measure(t.Context())
		return len(measured) == 2 && measured[1].Use.CPUNanos > 0 && measured[1].Processes > 0
	})
	whole, container := measured[0], measured[1]
	for _, m := range measured {
		if m.Namespace != config.Metadata.Namespace || m.Pod != config.Metadata.Name {
			t.Errorf("%s/%s was measured", m.Namespace, m.Pod)
		}
		if time.Since(m.Created) > time.Hour || m.Use.Memory == 0 || m.Use.Pids == 0 || m.Cgroup == "" {
			t.Errorf("measured %+v", m)
		}
	}
	if whole.Container != "" || whole.ContainerID != "" || whole.Image != "" || whole.Limits != nil {
		t.Errorf("the pod is %+v", whole)
	}
	if container.Container != "main" || container.ContainerID != id || container.Image == "" ||
		container.Limits == nil || container.Files.Open < 3 || container.FileLimit <= 0 {
		t.Errorf("the container is %+v", container)
	}
	list := g.r.ListUse()
	if len(list) != 1 || len(list[0].GetLinux().GetContainers()) != 1 {
		t.Fatalf("the use of resources is %v", list)
	}
	one := list[0].Linux.Containers[0]
	if list[0].GetAttributes().GetMetadata().GetName() != whole.Pod || one.GetAttributes().GetId() != id ||
		list[0].Linux.GetCpu().GetUsageCoreNanoSeconds().GetValue() < whole.Use.CPUNanos ||
		one.GetCpu().GetUsageCoreNanoSeconds().GetValue() < container.Use.CPUNanos ||
		one.GetMemory().GetWorkingSetBytes().GetValue() == 0 || one.GetSwap().GetSwapUsageBytes() == nil {
		t.Errorf("the use of resources is %v, after %+v", list, measured)
	}
	if err := g.r.StopContainer(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if measured = g.r.Measure(t.Context()); len(measured) != 1 || measured[0].Container != "" {
		t.Errorf("after its end: %+v", measured)
	}
}

func TestParseNetDev(t *testing.T) {
	got := parseNetDev([]byte(`Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0:       1       2    3    4    5     6          7         8        9      10   11   12   13    14      15         16
 short: 1 2 3
`))
	want := []Interface{{
		Name:     "eth0",
		Received: Traffic{Bytes: 1, Packets: 2, Errors: 3, Dropped: 4},
		Sent:     Traffic{Bytes: 9, Packets: 10, Errors: 11, Dropped: 12},
	}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
