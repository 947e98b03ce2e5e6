package runtime

import (
	"context"
	"path/filepath"
	"time"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/container"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/quota"
	"github.com/shoal-project/shoal/agent/sandbox"
	"github.com/shoal-project/shoal/cni/podnet"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerStats reads one container's use of resources.
func (r *Runtime) ContainerStats(ctx context.Context, id string) (*criv1.ContainerStats, error) {
	c, err := r.containers.Get(id)
	if err != nil {
		return nil, toStatus(err)
	}
	return r.containerStats(ctx, c), nil
}

// ListContainerStats reads the use of the running containers that match.
func (r *Runtime) ListContainerStats(ctx context.Context, f *criv1.ContainerStatsFilter) ([]*criv1.ContainerStats, error) {
	var out []*criv1.ContainerStats
	for _, c := range r.containers.List() {
		if c.State != container.Running || (f.GetId() != "" && !hasPrefix(c.ID, f.GetId())) ||
			(f.GetPodSandboxId() != "" && !hasPrefix(c.SandboxID, f.GetPodSandboxId())) ||
			!selects(f.GetLabelSelector(), c.Config.GetLabels()) {
			continue
		}
		out = append(out, r.containerStats(ctx, c))
	}
	return out, nil
}

// containerStats leaves out what an ended container has no more.
func (r *Runtime) containerStats(ctx context.Context, c *container.Container) *criv1.ContainerStats {
	out := &criv1.ContainerStats{Attributes: &criv1.ContainerAttributes{
		Id: c.ID, Metadata: c.Config.GetMetadata(), Labels: c.Config.GetLabels(), Annotations: c.Config.GetAnnotations(),
	}}
	if s, err := r.containers.Stats(c.ID); err == nil {
		out.Cpu, out.Memory, out.Swap, out.Io = cpu(s), memory(s), swap(s), ioUsage(s)
	}
	if u, err := r.containers.Usage(ctx, c.ID); err == nil {
		out.WritableLayer = &criv1.FilesystemUsage{
			Timestamp: u.At.UnixNano(), FsId: &criv1.FilesystemIdentifier{Mountpoint: r.cfg.DataDir},
			UsedBytes: u64(uint64(u.Bytes)),
		}
		if u.Inodes != quota.Uncounted {
			out.WritableLayer.InodesUsed = u64(uint64(u.Inodes))
		}
	}
	return out
}

// Files is what a container wrote beside its volumes, by its files alone.
func (r *Runtime) Files(ctx context.Context, id string) (bytes int64, err error) {
	return r.containers.Files(ctx, id)
}

func cpu(s cgroup.Stats) *criv1.CpuUsage {
	return &criv1.CpuUsage{Timestamp: s.Time.UnixNano(), UsageCoreNanoSeconds: u64(s.CPUNanos), Psi: psi(s.CPUStall)}
}

func memory(s cgroup.Stats) *criv1.MemoryUsage {
	m := &criv1.MemoryUsage{
		Timestamp: s.Time.UnixNano(), WorkingSetBytes: u64(s.WorkingSet), UsageBytes: u64(s.Memory), RssBytes: u64(s.RSS),
		PageFaults: u64(s.PageFaults), MajorPageFaults: u64(s.MajorPageFaults), Psi: psi(s.MemoryStall),
	}
	if s.MemoryLimit > 0 {
		m.AvailableBytes = u64(s.Available())
	}
	return m
}

func swap(s cgroup.Stats) *criv1.SwapUsage {
	return &criv1.SwapUsage{Timestamp: s.Time.UnixNano(), SwapUsageBytes: u64(s.Swap)}
}

// ioUsage is nil where the kernel tells nothing of it.
func ioUsage(s cgroup.Stats) *criv1.IoUsage {
	if s.IOStall == nil {
		return nil
	}
	return &criv1.IoUsage{Timestamp: s.Time.UnixNano(), Psi: psi(s.IOStall)}
}

func psi(p *host.Pressure) *criv1.PsiStats {
	if p == nil {
		return nil
	}
	data := func(d host.PSI) *criv1.PsiData {
		return &criv1.PsiData{Total: d.Total, Avg10: d.Avg10, Avg60: d.Avg60, Avg300: d.Avg300}
	}
	return &criv1.PsiStats{Full: data(p.Full), Some: data(p.Some)}
}

func u64(v uint64) *criv1.UInt64Value { return &criv1.UInt64Value{Value: v} }

// PodSandboxStats reads one pod's use of resources.
func (r *Runtime) PodSandboxStats(ctx context.Context, id string) (*criv1.PodSandboxStats, error) {
	s, err := r.sandboxes.Get(id)
	if err != nil {
		return nil, toStatus(err)
	}
	return r.podStats(ctx, s, interfaces(s)[s.ID], r.containers.Select(func(c *container.Container) bool {
		return c.SandboxID == s.ID && c.State == container.Running
	})), nil
}

// ListPodSandboxStats reads the use of the ready pods that match.
func (r *Runtime) ListPodSandboxStats(ctx context.Context,
	f *criv1.PodSandboxStatsFilter) ([]*criv1.PodSandboxStats, error) {
	containers, list := r.runningByPod(), r.ready(f)
	networks := interfaces(list...)
	var out []*criv1.PodSandboxStats
	for _, s := range list {
		out = append(out, r.podStats(ctx, s, networks[s.ID], containers[s.ID]))
	}
	return out, nil
}

// ready are the ready sandboxes that match.
func (r *Runtime) ready(f *criv1.PodSandboxStatsFilter) []*sandbox.Sandbox {
	return r.sandboxes.Select(func(s *sandbox.Sandbox) bool {
		return s.Ready && (f.GetId() == "" || hasPrefix(s.ID, f.GetId())) &&
			selects(f.GetLabelSelector(), s.Config.GetLabels())
	})
}

// runningByPod are the running containers by their sandboxes' IDs.
func (r *Runtime) runningByPod() map[string][]*container.Container {
	out := map[string][]*container.Container{}
	for _, c := range r.containers.Select(func(c *container.Container) bool { return c.State == container.Running }) {
		out[c.SandboxID] = append(out[c.SandboxID], c)
	}
	return out
}

// podStats measures a pod and its running containers.
func (r *Runtime) podStats(
	ctx context.Context, s *sandbox.Sandbox, network []Interface, running []*container.Container,
) *criv1.PodSandboxStats {
	linux := &criv1.LinuxPodSandboxStats{}
	if st, err := r.cgroups.Stat(s.Cgroup); err == nil {
		linux.Cpu, linux.Memory, linux.Io = cpu(st), memory(st), ioUsage(st)
		linux.Process = &criv1.ProcessUsage{Timestamp: st.Time.UnixNano(), ProcessCount: u64(st.Pids)}
	}
	linux.Network = networkUsage(network)
	for _, c := range running {
		linux.Containers = append(linux.Containers, r.containerStats(ctx, c))
	}
	return &criv1.PodSandboxStats{Linux: linux, Attributes: &criv1.PodSandboxAttributes{
		Id: s.ID, Metadata: s.Config.GetMetadata(), Labels: s.Config.GetLabels(), Annotations: s.Config.GetAnnotations(),
	}}
}

// ListUse is ListPodSandboxStats with what metrics of resources tell, and no more: the
// processor time, memory and swap of ready pods and of their running containers.
func (r *Runtime) ListUse() []*criv1.PodSandboxStats {
	containers := r.runningByPod()
	var out []*criv1.PodSandboxStats
	for _, s := range r.ready(nil) {
		linux := &criv1.LinuxPodSandboxStats{}
		if use, err := r.cgroups.Use(s.Cgroup); err == nil {
			linux.Cpu, linux.Memory = cpu(use), memory(use)
		}
		for _, c := range containers[s.ID] {
			one := &criv1.ContainerStats{Attributes: &criv1.ContainerAttributes{
				Id: c.ID, Metadata: c.Config.GetMetadata(), Labels: c.Config.GetLabels()}}
			if use, err := r.cgroups.Use(c.Cgroup); err == nil {
				one.Cpu, one.Memory, one.Swap = cpu(use), memory(use), swap(use)
			}
			linux.Containers = append(linux.Containers, one)
		}
		out = append(out, &criv1.PodSandboxStats{Linux: linux, Attributes: &criv1.PodSandboxAttributes{
			Id: s.ID, Metadata: s.Config.GetMetadata(), Labels: s.Config.GetLabels()}})
	}
	return out
}

// networkUsage tells of a pod's interfaces; its own is the default one. It is nil where they
// are not known.
func networkUsage(list []Interface) *criv1.NetworkUsage {
	if list == nil {
		return nil
	}
	out := &criv1.NetworkUsage{Timestamp: time.Now().UnixNano()}
	for _, i := range list {
		usage := &criv1.NetworkInterfaceUsage{
			Name: i.Name, RxBytes: u64(i.Received.Bytes), RxErrors: u64(i.Received.Errors),
			TxBytes: u64(i.Sent.Bytes), TxErrors: u64(i.Sent.Errors),
		}
		if i.Name == podnet.Interface {
			out.DefaultInterface = usage
		} else {
			out.Interfaces = append(out.Interfaces, usage)
		}
	}
	return out
}

// ImageFsInfo tells what images and writable layers take.
func (r *Runtime) ImageFsInfo(ctx context.Context) (*criv1.ImageFsInfoResponse, error) {
	size, inodes, err := r.images.Usage(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	now := time.Now().UnixNano()
	fs := func(dir string, bytes, inodes int64) []*criv1.FilesystemUsage {
		return []*criv1.FilesystemUsage{{
			Timestamp: now, FsId: &criv1.FilesystemIdentifier{Mountpoint: dir}, UsedBytes: u64(uint64(bytes)),
			InodesUsed: u64(uint64(inodes)),
		}}
	}
	var layerBytes, layerInodes int64
	for _, c := range r.containers.List() {
		if u, err := r.containers.Usage(ctx, c.ID); err == nil {
			layerBytes, layerInodes = layerBytes+u.Bytes, layerInodes+max(u.Inodes, 0)
		}
	}
	// One directory for both, unless they are on two disks: clients tell by it.
	images, layers := r.images.Dir(), filepath.Join(r.cfg.DataDir, "containers")
	if host.SameDisk(images, layers) {
		images, layers = r.cfg.DataDir, r.cfg.DataDir
	}
	return &criv1.ImageFsInfoResponse{
		ImageFilesystems:     fs(images, size, inodes),
		ContainerFilesystems: fs(layers, layerBytes, layerInodes),
	}, nil
}

// metric is one value of the metrics endpoint, named as cAdvisor names it.
type metric struct {
	name, help string
	kind       criv1.MetricType
	value      func(cgroup.Stats) uint64
}

var metrics = []metric{
	{"container_cpu_usage_nanoseconds_total", "Cumulative cpu time consumed in nanoseconds", criv1.MetricType_COUNTER,
		func(s cgroup.Stats) uint64 { return s.CPUNanos }},
	{"container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals", criv1.MetricType_COUNTER,
		func(s cgroup.Stats) uint64 { return s.Periods }},
	{"container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals", criv1.MetricType_COUNTER,
		func(s cgroup.Stats) uint64 { return s.Throttled }},
	{"container_memory_usage_bytes",
		"Current memory usage in bytes, including all memory regardless of when it was accessed",
		criv1.MetricType_GAUGE, func(s cgroup.Stats) uint64 { return s.Memory }},
	{"container_memory_working_set_bytes", "Current working set in bytes", criv1.MetricType_GAUGE,
		func(s cgroup.Stats) uint64 { return s.WorkingSet }},
	{"container_memory_rss", "Size of RSS in bytes", criv1.MetricType_GAUGE, func(s cgroup.Stats) uint64 { return s.RSS }},
	{"container_memory_swap", "Container swap usage in bytes", criv1.MetricType_GAUGE,
		func(s cgroup.Stats) uint64 { return s.Swap }},
	{"container_oom_events_total", "Count of out of memory events observed for the container", criv1.MetricType_COUNTER,
		func(s cgroup.Stats) uint64 { return s.OOMKills }},
	{"container_processes", "Number of processes running inside the container", criv1.MetricType_GAUGE,
		func(s cgroup.Stats) uint64 { return s.Pids }},
}

var metricLabels = []string{"id", "name", "image"}

// ListMetricDescriptors names the metrics.
func (r *Runtime) ListMetricDescriptors(context.Context) ([]*criv1.MetricDescriptor, error) {
	var out []*criv1.MetricDescriptor
	for _, m := range metrics {
		out = append(out, &criv1.MetricDescriptor{Name: m.name, Help: m.help, LabelKeys: metricLabels})
	}
	return out, nil
}

// ListPodSandboxMetrics reads the metrics of all ready pods.
func (r *Runtime) ListPodSandboxMetrics(context.Context) ([]*criv1.PodSandboxMetrics, error) {
	byPod := map[string][]*criv1.ContainerMetrics{}
	for _, c := range r.containers.List() {
		if c.State != container.Running {
			continue
		}
		if s, err := r.containers.Stats(c.ID); err == nil {
			labels := []string{c.ID, c.Config.GetMetadata().GetName(), c.ImageRef}
			byPod[c.SandboxID] = append(byPod[c.SandboxID],
				&criv1.ContainerMetrics{ContainerId: c.ID, Metrics: values(s, labels)})
		}
	}
	var out []*criv1.PodSandboxMetrics
	for _, s := range r.ready(nil) {
		m := &criv1.PodSandboxMetrics{PodSandboxId: s.ID, ContainerMetrics: byPod[s.ID]}
		if st, err := r.cgroups.Stat(s.Cgroup); err == nil {
			m.Metrics = values(st, []string{s.ID, "POD", ""})
		}
		out = append(out, m)
	}
	return out, nil
}

func values(s cgroup.Stats, labels []string) []*criv1.Metric {
	var out []*criv1.Metric
	for _, m := range metrics {
		out = append(out,
			&criv1.Metric{Name: m.name, Timestamp: s.Time.UnixNano(), MetricType: m.kind,
				LabelValues: labels, Value: u64(m.value(s))})
	}
	return out
}
