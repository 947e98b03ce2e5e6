package stats

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/host"
)

// measuredPod is one pod with one container that has a layer and uses swap.
func measuredPod() *measured {
	now := time.Now().UnixNano()
	value := func(n uint64) *criv1.UInt64Value { return &criv1.UInt64Value{Value: n} }
	cpu := &criv1.CpuUsage{Timestamp: now, UsageCoreNanoSeconds: value(1e9)}
	return &measured{pods: []*criv1.PodSandboxStats{{
		Attributes: &criv1.PodSandboxAttributes{Id: "s",
			Metadata: &criv1.PodSandboxMetadata{Name: "p", Namespace: "ns", Uid: "u"}},
		Linux: &criv1.LinuxPodSandboxStats{
			Cpu:     cpu,
			Network: &criv1.NetworkUsage{Timestamp: now},
			Containers: []*criv1.ContainerStats{{
				Attributes:    &criv1.ContainerAttributes{Id: "c", Metadata: &criv1.ContainerMetadata{Name: "a"}},
				Cpu:           cpu,
				Swap:          &criv1.SwapUsage{Timestamp: now, SwapUsageBytes: value(5)},
				WritableLayer: &criv1.FilesystemUsage{Timestamp: now, UsedBytes: value(100), InodesUsed: value(2)},
			}},
		},
	}}}
}

// TestSummary: what a kubelet tells of a pod that is not the runtime's word.
func TestSummary(t *testing.T) {
	p := newProvider(measuredPod())
	dir, began := t.TempDir(), time.Now().Add(-10*time.Second)
	p.NodeDir, p.ImageDir = dir, dir
	p.Began = func(context.Context) map[string]time.Time { return map[string]time.Time{"s": began, "c": began} }
	p.LogUse = func(_ context.Context, pod statsapi.PodReference, container string) (uint64, uint64) {
		if pod.UID != "u" || container != "a" {
			t.Errorf("logs of %v, %s", pod, container)
		}
		return 20, 1
	}
	p.AllPods = func() (cgroup.Stats, error) { return cgroup.Stats{Memory: 9, MemoryLimit: 10, WorkingSet: 7}, nil }
	p.Network = func() ([]Interface, string) {
		return []Interface{{Name: "eth0", Received: Traffic{Bytes: 3}}, {Name: "eth1"}}, "eth0"
	}
	p.Volumes = func(context.Context) []Volume {
		pod := statsapi.PodReference{Name: "p", Namespace: "ns", UID: "u"}
		use := &host.FileSystem{Bytes: 1000, Used: 3, Available: 500, Inodes: 50, InodesFree: 20}
		return []Volume{{Pod: pod, Name: "scratch", Use: use, Ephemeral: true, InodesUsed: 4},
			{Pod: pod, Name: "token", Use: use}}
	}
	s, err := p.Summary(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	pod := s.Pods[0]
	c := pod.Containers[0]
	if !pod.StartTime.Time.Equal(began) || !c.StartTime.Time.Equal(began) {
		t.Errorf("began %s, %s, want %s", pod.StartTime, c.StartTime, began)
	}
	for what, n := range map[string]*uint64{"node": s.Node.CPU.UsageNanoCores, "pod": pod.CPU.UsageNanoCores,
		"container": c.CPU.UsageNanoCores} {
		if n == nil || *n == 0 {
			t.Errorf("CPU of late of the %s is not told", what)
		}
	}
	if r := c.Rootfs; *r.UsedBytes != 100 || *r.InodesUsed != 2 || *r.CapacityBytes == 0 || *r.Inodes == 0 {
		t.Errorf("layer: %+v", r)
	}
	if l := c.Logs; *l.UsedBytes != 20 || *l.InodesUsed != 1 || *l.CapacityBytes == 0 {
		t.Errorf("logs: %+v", l)
	}
	if e := pod.EphemeralStorage; *e.UsedBytes != 123 || *e.InodesUsed != 7 || *e.CapacityBytes == 0 {
		t.Errorf("of the node's disk: %d bytes, %d files", *e.UsedBytes, *e.InodesUsed)
	}
	if v := pod.VolumeStats; len(v) != 2 || *v[0].InodesUsed != 4 || *v[1].InodesUsed != 30 {
		t.Errorf("volumes: %+v", v)
	}
	if *c.Swap.SwapUsageBytes != 5 || *pod.Swap.SwapUsageBytes != 5 {
		t.Errorf("swap: %+v, %+v", c.Swap, pod.Swap)
	}
	system := map[string]statsapi.ContainerStats{}
	for _, c := range s.Node.SystemContainers {
		system[c.Name] = c
	}
	if own := system["kubelet"]; own.Memory == nil || *own.Memory.RSSBytes == 0 || own.StartTime.IsZero() {
		t.Errorf("this process: %+v", own)
	}
	if all := system["pods"]; all.Memory == nil || *all.Memory.AvailableBytes != 3 {
		t.Errorf("all pods: %+v", all)
	}
	if n := s.Node.Network; n.Name != "eth0" || *n.RxBytes != 3 || len(n.Interfaces) != 2 {
		t.Errorf("the node's network: %+v", n)
	}
	s, err = p.Summary(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	if pod = s.Pods[0]; pod.Network != nil || pod.VolumeStats != nil || pod.EphemeralStorage != nil || pod.CPU == nil ||
		s.Node.Network != nil || s.Node.Fs != nil {
		t.Errorf("in brief: %+v", s)
	}
}

// What is left by the summary is what pid.available is measured by.
func TestRlimit(t *testing.T) {
	for _, c := range []struct{ pids, threads, want int64 }{{4194304, 192730, 192730}, {32768, 192730, 32768}} {
		r := rlimit(host.Tasks{Count: 639, MaxPID: c.pids, MaxThreads: c.threads}, metav1.Now())
		if *r.MaxPID != c.want || *r.NumOfRunningProcesses != 639 {
			t.Errorf("%+v: at most %d, now %d", c, *r.MaxPID, *r.NumOfRunningProcesses)
		}
	}
}
