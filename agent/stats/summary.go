package stats

import (
	"context"
	"sort"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/host"
)

// answer is one summary in the making.
type answer struct {
	*Provider
	ctx   context.Context
	brief bool
	began map[string]time.Time // pods and containers, by their IDs
	known map[string]bool      // keys of rates that were asked for
}

// Keys of rates that are of no pod and no container.
const (
	rateNode  = "node"
	ratePods  = "pods"
	rateAgent = "kubelet"
)

// rate completes what a CPU was used for by the rate of late.
func (s *answer) rate(key string, began time.Time, cpu *statsapi.CPUStats) {
	if cpu == nil || cpu.UsageCoreNanoSeconds == nil {
		return
	}
	s.known[key] = true
	late, ok := s.rates.of(key, began, reading{cpu.Time.Time, *cpu.UsageCoreNanoSeconds})
	if ok && cpu.UsageNanoCores == nil {
		cpu.UsageNanoCores = &late
	}
}

func (s *answer) node() statsapi.NodeStats {
	now, boot := metav1.Now(), host.BootTime()
	n := statsapi.NodeStats{NodeName: s.NodeName, StartTime: metav1.NewTime(boot)}
	if ns, err := host.CPUTime(); err == nil {
		n.CPU = &statsapi.CPUStats{Time: now, UsageCoreNanoSeconds: &ns, PSI: hostPSI("cpu")}
		s.rate(rateNode, boot, n.CPU)
	}
	available := s.Available()
	avail, used := uint64(available), uint64(s.used(available))
	n.Memory = &statsapi.MemoryStats{Time: now, AvailableBytes: &avail, WorkingSetBytes: &used,
		UsageBytes: &used, PSI: hostPSI("memory")}
	if pages, err := host.ReadPages(); err == nil {
		m := n.Memory
		m.RSSBytes, m.PageFaults, m.MajorPageFaults = &pages.Anonymous, &pages.Faults, &pages.MajorFaults
	}
	n.SystemContainers = s.system(now)
	if s.brief {
		return n
	}
	if free, used, ok := host.Swap(); ok {
		n.Swap = &statsapi.SwapStats{Time: now, SwapAvailableBytes: &free, SwapUsageBytes: &used}
	}
	if stall := hostPSI("io"); stall != nil {
		n.IO = &statsapi.IOStats{Time: now, PSI: stall}
	}
	n.Network = s.nodeNetwork(now)
	n.Fs = filesystem(s.NodeDir, now)
	n.Runtime = &statsapi.RuntimeStats{ImageFs: filesystem(s.ImageDir, now), ContainerFs: filesystem(s.ImageDir, now)}
	n.Rlimit = processes(now)
	return n
}

// system are the group of all pods and this process.
func (s *answer) system(now metav1.Time) (out []statsapi.ContainerStats) {
	if own, err := host.Self(); err == nil {
		nanos := uint64(own.CPU)
		c := statsapi.ContainerStats{
			Name: statsapi.SystemContainerKubelet, StartTime: metav1.NewTime(own.Started),
			CPU: &statsapi.CPUStats{Time: now, UsageCoreNanoSeconds: &nanos},
			Memory: &statsapi.MemoryStats{Time: now, UsageBytes: &own.Resident, WorkingSetBytes: &own.Resident,
				RSSBytes: &own.Resident},
		}
		s.rate(rateAgent, own.Started, c.CPU)
		out = append(out, c)
	}
	if s.AllPods == nil {
		return out
	}
	if use, err := s.AllPods(); err == nil {
		c := statsapi.ContainerStats{Name: statsapi.SystemContainerPods, StartTime: metav1.NewTime(host.BootTime()),
			CPU: groupCPU(use), Memory: groupMemory(use)}
		s.rate(ratePods, time.Time{}, c.CPU)
		out = append(out, c)
	}
	return out
}

func groupCPU(use cgroup.Stats) *statsapi.CPUStats {
	return &statsapi.CPUStats{Time: metav1.NewTime(use.Time), UsageCoreNanoSeconds: &use.CPUNanos,
		PSI: pressure(use.CPUStall)}
}

func groupMemory(use cgroup.Stats) *statsapi.MemoryStats {
	m := &statsapi.MemoryStats{Time: metav1.NewTime(use.Time), UsageBytes: &use.Memory, WorkingSetBytes: &use.WorkingSet,
		RSSBytes: &use.RSS, PageFaults: &use.PageFaults, MajorPageFaults: &use.MajorPageFaults,
		PSI: pressure(use.MemoryStall)}
	if use.MemoryLimit > 0 {
		available := use.Available()
		m.AvailableBytes = &available
	}
	return m
}

func (s *answer) nodeNetwork(now metav1.Time) *statsapi.NetworkStats {
	if s.Network == nil {
		return nil
	}
	list, main := s.Network()
	out := &statsapi.NetworkStats{Time: now, Interfaces: []statsapi.InterfaceStats{}}
	for _, i := range list {
		one := statsapi.InterfaceStats{Name: i.Name, RxBytes: &i.Received.Bytes, RxErrors: &i.Received.Errors,
			TxBytes: &i.Sent.Bytes, TxErrors: &i.Sent.Errors}
		out.Interfaces = append(out.Interfaces, one)
		if i.Name == main {
			out.InterfaceStats = one
		}
	}
	return out
}

// used is the memory that is in use, in bytes. Memory that came to the machine since
// the agent's start is available, too.
func (p *Provider) used(available int64) int64 { return max(0, p.MemoryBytes-available) }

func (s *answer) pod(of *criv1.PodSandboxStats, volumes volumesByPod) statsapi.PodStats {
	m := of.Attributes.Metadata
	out := statsapi.PodStats{PodRef: statsapi.PodReference{Name: m.Name, Namespace: m.Namespace, UID: m.Uid},
		StartTime: metav1.NewTime(s.began[of.Attributes.Id]),
		CPU:       cpu(of.Linux.Cpu), Memory: memory(of.Linux.Memory), IO: ioStats(of.Linux.Io),
		Containers: []statsapi.ContainerStats{}}
	s.rate(of.Attributes.Id, out.StartTime.Time, out.CPU)
	if n := of.Linux.GetProcess().GetProcessCount(); n != nil {
		out.ProcessStats = &statsapi.ProcessStats{ProcessCount: &n.Value}
	}
	for _, c := range of.Linux.Containers {
		out.Containers = append(out.Containers, s.container(c, out.PodRef))
	}
	out.Swap = sumOfSwap(out.Containers)
	if s.brief {
		return out
	}
	out.Network = network(of.Linux.Network)
	out.VolumeStats = volumes.stats[out.PodRef]
	out.EphemeralStorage = s.ephemeral(&out, volumes.ephemeral[out.PodRef])
	return out
}

func (s *answer) container(c *criv1.ContainerStats, pod statsapi.PodReference) statsapi.ContainerStats {
	out := statsapi.ContainerStats{Name: c.GetAttributes().GetLabels()[labelContainer],
		StartTime: metav1.NewTime(s.began[c.GetAttributes().GetId()]), CPU: cpu(c.Cpu), Memory: memory(c.Memory),
		IO: ioStats(c.Io), Swap: swap(c.Swap)}
	if out.Name == "" {
		out.Name = c.GetAttributes().GetMetadata().GetName()
	}
	s.rate(c.GetAttributes().GetId(), out.StartTime.Time, out.CPU)
	if s.brief {
		return out
	}
	if w := c.WritableLayer; w != nil {
		out.Rootfs = beside(filesystem(s.ImageDir, timeOf(w.Timestamp)), timeOf(w.Timestamp))
		out.Rootfs.UsedBytes, out.Rootfs.InodesUsed = value(w.UsedBytes), value(w.InodesUsed)
	}
	if s.LogUse != nil {
		now := metav1.Now()
		bytes, inodes := s.LogUse(s.ctx, pod, out.Name)
		out.Logs = beside(filesystem(s.NodeDir, now), now)
		out.Logs.UsedBytes, out.Logs.InodesUsed = &bytes, &inodes
	}
	return out
}

// beside is a file system whose use is somebody's part of it; nothing but the time is
// known where it is not there.
func beside(fs *statsapi.FsStats, now metav1.Time) *statsapi.FsStats {
	if fs == nil {
		return &statsapi.FsStats{Time: now}
	}
	return fs
}

// ephemeral is what a pod takes of the node's disk: its containers' layers and logs, and
// its volumes that end with it.
func (s *answer) ephemeral(p *statsapi.PodStats, volumes usedFiles) *statsapi.FsStats {
	if s.LogUse == nil {
		return nil
	}
	sum := volumes
	for _, c := range p.Containers {
		for _, fs := range []*statsapi.FsStats{c.Rootfs, c.Logs} {
			if fs != nil && fs.UsedBytes != nil {
				sum.bytes += *fs.UsedBytes
			}
			if fs != nil && fs.InodesUsed != nil {
				sum.inodes += *fs.InodesUsed
			}
		}
	}
	now := metav1.Now()
	out := beside(filesystem(s.NodeDir, now), now)
	out.UsedBytes, out.InodesUsed = &sum.bytes, &sum.inodes
	return out
}

// usedFiles is what some files take.
type usedFiles struct{ bytes, inodes uint64 }

// volumesByPod are the volumes of pods, and what those take that end with their pod.
type volumesByPod struct {
	stats     map[statsapi.PodReference][]statsapi.VolumeStats
	ephemeral map[statsapi.PodReference]usedFiles
}

// volumesByPod are the volumes of pods, those behind claims and others.
func (p *Provider) volumesByPod(ctx context.Context) volumesByPod {
	out := volumesByPod{map[statsapi.PodReference][]statsapi.VolumeStats{}, map[statsapi.PodReference]usedFiles{}}
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
			inodesUsed := v.inodesUsed()
			one.FsStats = statsapi.FsStats{Time: metav1.NewTime(v.At), AvailableBytes: &has.Available,
				CapacityBytes: &has.Bytes, UsedBytes: &has.Used, Inodes: &has.Inodes, InodesFree: &has.InodesFree,
				InodesUsed: &inodesUsed}
		}
		if v.Abnormal != nil {
			one.VolumeHealthStats = &statsapi.VolumeHealthStats{Abnormal: *v.Abnormal}
		}
		out.stats[v.Pod] = append(out.stats[v.Pod], one)
		if v.Ephemeral && v.Use != nil {
			sum := out.ephemeral[v.Pod]
			out.ephemeral[v.Pod] = usedFiles{sum.bytes + v.Use.Used, sum.inodes + v.inodesUsed()}
		}
	}
	for _, list := range out.stats {
		sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
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
	return rlimit(t, now)
}

// rlimit tells what eviction by pid.available goes by: the kernel has two limits.
func rlimit(t host.Tasks, now metav1.Time) *statsapi.RlimitStats {
	limit := t.Limit()
	return &statsapi.RlimitStats{Time: now, MaxPID: &limit, NumOfRunningProcesses: &t.Count}
}
