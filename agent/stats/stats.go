package stats

import (
	"context"
	"fmt"
	"sort"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/metrics"
)

// Runtime measures sandboxes.
type Runtime interface {
	ListPodSandboxStats(ctx context.Context, filter *criv1.PodSandboxStatsFilter) ([]*criv1.PodSandboxStats, error)
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

	// What follows is for metrics alone, and may be missing.

	// Build is this program's version.
	Build Build
	// CPUs is how many the machine has.
	CPUs int
	// Groups measures the pods' control groups; nil: what the CRI tells of them
	// must do, and Images names the images of containers by their IDs.
	Groups func(ctx context.Context) []Group
	Images func(ctx context.Context) map[string]string
	// Counts is what the agent's parts count.
	Counts *metrics.Agent
	// Probes writes what came of probes.
	Probes func(*metrics.Page)
	// Volumes are the persistent ones; VolumeNumbers counts all, by their kind.
	Volumes       func(ctx context.Context) []Volume
	VolumeNumbers func() []VolumeNumber
	// ClientCertificateEnd and ServerCertificateEnd are when the agent's certificates
	// expire, zero for no certificate.
	ClientCertificateEnd, ServerCertificateEnd func() time.Time
}

// Summary is the kubelet's /stats/summary.
func (p *Provider) Summary(ctx context.Context) (*statsapi.Summary, error) {
	pods, err := p.Runtime.ListPodSandboxStats(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("measure pods: %w", err)
	}
	out := &statsapi.Summary{Node: p.node(), Pods: []statsapi.PodStats{}}
	volumes := p.volumesByPod(ctx)
	for _, s := range pods {
		if a := s.GetAttributes().GetMetadata(); a != nil && s.Linux != nil {
			of := podStats(s)
			of.VolumeStats = volumes[of.PodRef]
			out.Pods = append(out.Pods, of)
		}
	}
	sort.Slice(out.Pods, func(i, j int) bool {
		a, b := &out.Pods[i].PodRef, &out.Pods[j].PodRef
		return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
	})
	return out, nil
}

// volumesByPod are the volumes of pods, those behind claims and others.
func (p *Provider) volumesByPod(ctx context.Context) map[statsapi.PodReference][]statsapi.VolumeStats {
	out := map[statsapi.PodReference][]statsapi.VolumeStats{}
	if p.Volumes == nil {
		return out
	}
	for _, v := range p.Volumes(ctx) {
		one := statsapi.VolumeStats{
			Name: v.Name,
		}
		if v.Claim != "" {
			one.PVCRef = &statsapi.PVCReference{Name: v.Claim, Namespace: v.Namespace}
		}
		if has := v.Use; has != nil {
			inodesUsed := has.Inodes - has.InodesFree
			one.FsStats = statsapi.FsStats{Time: metav1.NewTime(v.At), AvailableBytes: &has.Available,
				CapacityBytes: &has.Bytes, UsedBytes: &has.Used, Inodes: &has.Inodes, InodesFree: &has.InodesFree,
				InodesUsed: &inodesUsed}
		}
		if v.Abnormal != nil {
			one.VolumeHealthStats = &statsapi.VolumeHealthStats{Abnormal: *v.Abnormal}
		}
		out[v.Pod] = append(out[v.Pod], one)
	}
	for _, list := range out {
		sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	}
	return out
}

func (p *Provider) node() statsapi.NodeStats {
	now := metav1.Now()
	n := statsapi.NodeStats{NodeName: p.NodeName, StartTime: metav1.NewTime(host.BootTime())}
	if ns, err := host.CPUTime(); err == nil {
		n.CPU = &statsapi.CPUStats{Time: now, UsageCoreNanoSeconds: &ns, PSI: hostPSI("cpu")}
	}
	available := p.Available()
	avail, used := uint64(available), uint64(p.used(available))
	n.Memory = &statsapi.MemoryStats{Time: now, AvailableBytes: &avail, WorkingSetBytes: &used,
		UsageBytes: &used, PSI: hostPSI("memory")}
	if pages, err := host.ReadPages(); err == nil {
		m := n.Memory
		m.RSSBytes, m.PageFaults, m.MajorPageFaults = &pages.Anonymous, &pages.Faults, &pages.MajorFaults
	}
	if stall := hostPSI("io"); stall != nil {
		n.IO = &statsapi.IOStats{Time: now, PSI: stall}
	}
	n.Fs = filesystem(p.NodeDir, now)
	n.Runtime = &statsapi.RuntimeStats{ImageFs: filesystem(p.ImageDir, now), ContainerFs: filesystem(p.ImageDir, now)}
	n.Rlimit = processes(now)
	return n
}

// used is the memory that is in use, in bytes. Memory that came to the machine since
// the agent's start is available, too.
func (p *Provider) used(available int64) int64 { return max(0, p.MemoryBytes-available) }

func podStats(s *criv1.PodSandboxStats) statsapi.PodStats {
	m := s.Attributes.Metadata
	out := statsapi.PodStats{PodRef: statsapi.PodReference{Name: m.Name, Namespace: m.Namespace, UID: m.Uid},
		CPU: cpu(s.Linux.Cpu), Memory: memory(s.Linux.Memory), IO: ioStats(s.Linux.Io),
		Network: network(s.Linux.Network), Containers: []statsapi.ContainerStats{}}
	if n := s.Linux.GetProcess().GetProcessCount(); n != nil {
		out.ProcessStats = &statsapi.ProcessStats{ProcessCount: &n.Value}
	}
	for _, c := range s.Linux.Containers {
		cs := statsapi.ContainerStats{Name: c.GetAttributes().GetLabels()[labelContainer], CPU: cpu(c.Cpu),
			Memory: memory(c.Memory), IO: ioStats(c.Io)}
		if cs.Name == "" {
			cs.Name = c.GetAttributes().GetMetadata().GetName()
		}
		if w := c.WritableLayer; w != nil {
			cs.Rootfs = &statsapi.FsStats{Time: timeOf(w.Timestamp), UsedBytes: value(w.UsedBytes),
				InodesUsed: value(w.InodesUsed)}
		}
		out.Containers = append(out.Containers, cs)
	}
	return out
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

func hostPSI(resource string) *statsapi.PSIStats {
	p := host.Stall(resource)
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

func filesystem(dir string, now metav1.Time) *statsapi.FsStats {
	has, err := host.Space(dir)
	if err != nil {
		return nil
	}
	inodesUsed := has.Inodes - has.InodesFree
	return &statsapi.FsStats{Time: now, AvailableBytes: &has.Available, CapacityBytes: &has.Bytes, UsedBytes: &has.Used,
		InodesFree: &has.InodesFree, Inodes: &has.Inodes, InodesUsed: &inodesUsed}
}

func processes(now metav1.Time) *statsapi.RlimitStats {
	t, err := host.ReadTasks()
	if err != nil {
		return nil
	}
	return &statsapi.RlimitStats{Time: now, MaxPID: &t.MaxPID, NumOfRunningProcesses: &t.Count}
}
