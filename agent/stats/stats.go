package stats

import (
	"context"
	"fmt"
	"sort"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/metrics"
)

// Runtime measures sandboxes.
type Runtime interface {
	ListPodSandboxStats(ctx context.Context, filter *criv1.PodSandboxStatsFilter) ([]*criv1.PodSandboxStats, error)
	ListPodSandbox(ctx context.Context, filter *criv1.PodSandboxFilter) ([]*criv1.PodSandbox, error)
	ListContainers(ctx context.Context, filter *criv1.ContainerFilter) ([]*criv1.Container, error)
}

// Labels that the CRI's users know pods and containers by.
const (
	labelContainer = "io.kubernetes.container.name"
)

// Provider measures when it is asked.
type Provider struct {
	NodeName string
	Runtime  Runtime
	// NodeDir and ImageDir are directories on the filesystems of volumes and
	// of images.
	NodeDir, ImageDir string
	MemoryBytes       int64
	// Available is the memory that can still be taken, in bytes.
	Available func() int64
	// Shutdown tells when the last graceful shutdown began and ended, zero
	// if never.
	Shutdown func() (start, end time.Time)
	// Claims are how many ResourceClaims are in use, by their drivers.
	Claims func() map[string]int

	// What follows may be missing.

	// Began is when pods and containers did, by the runtime's IDs of them.
	Began func(ctx context.Context) map[string]time.Time
	// LogUse is what the logs of a pod's container take.
	LogUse func(ctx context.Context, pod statsapi.PodReference, container string) (bytes, inodes uint64)
	// AllPods is what the group of all pods uses.
	AllPods func() (cgroup.Stats, error)
	// Network are the interfaces of the node's network, and which of them has the
	// default route.
	Network func() (list []Interface, main string)

	rates rates

	// What follows is for metrics alone, and may be missing.

	// Build is this program's version.
	Build Build
	// CPUs is how many the machine has.
	CPUs int
	// Groups measures the pods' control groups; nil: what the CRI tells of them
	// must do, and Images names the images of containers by their IDs.
	Groups func(ctx context.Context) []Group
	// Use measures the processor time, memory and swap of pods and containers; nil: what
	// the CRI tells of them, which takes longer, must do.
	Use func() []*criv1.PodSandboxStats
	// LayerDisks are those that containers' layers are on. Groups tells nothing of one
	// that a group did not use yet.
	LayerDisks []cgroup.Disk
	// Machine measures the whole machine.
	Machine func() (Group, error)
	Images  func(ctx context.Context) map[string]string
	// Counts is what the agent's parts count.
	Counts *metrics.Agent
	// Probes writes what came of probes.
	Probes func(*metrics.Page)
	// Standings is how the node's pods stand with the agent.
	Standings func() []Standing
	// Volumes are the persistent ones; VolumeNumbers counts all, by their kind.
	Volumes       func(ctx context.Context) []Volume
	VolumeNumbers func() []VolumeNumber
	// ClientCertificateEnd and ServerCertificateEnd are when the agent's certificates
	// expire, zero for no certificate.
	ClientCertificateEnd, ServerCertificateEnd func() time.Time
}

// Summary is the kubelet's /stats/summary; brief, without what volumes, logs and networks
// hold.
func (p *Provider) Summary(ctx context.Context, brief bool) (*statsapi.Summary, error) {
	pods, err := p.Runtime.ListPodSandboxStats(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("measure pods: %w", err)
	}
	s := &answer{Provider: p, ctx: ctx, brief: brief, known: map[string]bool{}, began: map[string]time.Time{}}
	if p.Began != nil {
		s.began = p.Began(ctx)
	}
	out := &statsapi.Summary{Node: s.node(), Pods: []statsapi.PodStats{}}
	var volumes volumesByPod
	if !brief {
		volumes = p.volumesByPod(ctx)
	}
	for _, one := range pods {
		if one.GetAttributes().GetMetadata() != nil && one.Linux != nil {
			out.Pods = append(out.Pods, s.pod(one, volumes))
		}
	}
	p.rates.keep(s.known)
	sort.Slice(out.Pods, func(i, j int) bool {
		a, b := &out.Pods[i].PodRef, &out.Pods[j].PodRef
		return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
	})
	return out, nil
}

func value(v *criv1.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	return &v.Value
}

func timeOf(ns int64) metav1.Time { return metav1.NewTime(time.Unix(0, ns)) }

func cpu(c *criv1.CpuUsage) *statsapi.CPUStats {
	if c == nil {
		return nil
	}
	return &statsapi.CPUStats{Time: timeOf(c.Timestamp), UsageNanoCores: value(c.UsageNanoCores),
		UsageCoreNanoSeconds: value(c.UsageCoreNanoSeconds), PSI: psi(c.Psi)}
}

func ioStats(i *criv1.IoUsage) *statsapi.IOStats {
	if i == nil {
		return nil
	}
	return &statsapi.IOStats{Time: timeOf(i.Timestamp), PSI: psi(i.Psi)}
}

// psi is nil where the kernel does not tell (KEP-4205).
func psi(p *criv1.PsiStats) *statsapi.PSIStats {
	if p == nil {
		return nil
	}
	data := func(d *criv1.PsiData) statsapi.PSIData {
		return statsapi.PSIData{Total: d.GetTotal(), Avg10: d.GetAvg10(), Avg60: d.GetAvg60(), Avg300: d.GetAvg300()}
	}
	return &statsapi.PSIStats{Full: data(p.Full), Some: data(p.Some)}
}

func hostPSI(resource string) *statsapi.PSIStats { return pressure(host.Stall(resource)) }

func pressure(p *host.Pressure) *statsapi.PSIStats {
	if p == nil {
		return nil
	}
	data := func(d host.PSI) statsapi.PSIData {
		return statsapi.PSIData{Total: d.Total, Avg10: d.Avg10, Avg60: d.Avg60, Avg300: d.Avg300}
	}
	return &statsapi.PSIStats{Full: data(p.Full), Some: data(p.Some)}
}

func memory(m *criv1.MemoryUsage) *statsapi.MemoryStats {
	if m == nil {
		return nil
	}
	return &statsapi.MemoryStats{Time: timeOf(m.Timestamp), AvailableBytes: value(m.AvailableBytes),
		UsageBytes:      value(m.UsageBytes),
		WorkingSetBytes: value(m.WorkingSetBytes), RSSBytes: value(m.RssBytes), PageFaults: value(m.PageFaults),
		MajorPageFaults: value(m.MajorPageFaults), PSI: psi(m.Psi)}
}

func swap(s *criv1.SwapUsage) *statsapi.SwapStats {
	if s == nil {
		return nil
	}
	return &statsapi.SwapStats{Time: timeOf(s.Timestamp), SwapAvailableBytes: value(s.SwapAvailableBytes),
		SwapUsageBytes: value(s.SwapUsageBytes)}
}

// sumOfSwap is what containers use of it together; nil where nothing is known.
func sumOfSwap(containers []statsapi.ContainerStats) (sum *statsapi.SwapStats) {
	for _, c := range containers {
		if c.Swap == nil || c.Swap.SwapUsageBytes == nil {
			continue
		}
		if sum == nil {
			sum = &statsapi.SwapStats{Time: c.Swap.Time, SwapUsageBytes: new(uint64)}
		}
		*sum.SwapUsageBytes += *c.Swap.SwapUsageBytes
	}
	return sum
}

func network(n *criv1.NetworkUsage) *statsapi.NetworkStats {
	if n == nil {
		return nil
	}
	one := func(i *criv1.NetworkInterfaceUsage) statsapi.InterfaceStats {
		return statsapi.InterfaceStats{Name: i.Name, RxBytes: value(i.RxBytes), RxErrors: value(i.RxErrors),
			TxBytes: value(i.TxBytes), TxErrors: value(i.TxErrors)}
	}
	out := &statsapi.NetworkStats{Time: timeOf(n.Timestamp)}
	if n.DefaultInterface != nil {
		out.InterfaceStats = one(n.DefaultInterface)
		out.Interfaces = append(out.Interfaces, out.InterfaceStats)
	}
	for _, i := range n.Interfaces {
		out.Interfaces = append(out.Interfaces, one(i))
	}
	return out
}
