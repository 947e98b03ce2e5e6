package runtime

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/container"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/netns"
	"github.com/shoal-project/shoal/agent/sandbox"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerStats reads one container's use of resources.
func (r *Runtime) ContainerStats(ctx context.Context, id string) (*cri.ContainerStats, error) {
	c, err := r.containers.Get(id)
	if err != nil {
		return nil, toStatus(err)
	}
	return r.containerStats(ctx, c), nil
}

// ListContainerStats reads the use of the running containers that match.
func (r *Runtime) ListContainerStats(ctx context.Context, f *cri.ContainerStatsFilter) ([]*cri.ContainerStats, error) {
	var out []*cri.ContainerStats
	for _, c := range r.containers.List() {
		if c.State != container.Running || (f.GetId() != "" && !hasPrefix(c.ID, f.GetId())) ||
			(f.GetPodSandboxId() != "" && !hasPrefix(c.SandboxID, f.GetPodSandboxId())) || !selects(f.GetLabelSelector(), c.Config.GetLabels()) {
			continue
		}
		out = append(out, r.containerStats(ctx, c))
	}
	return out, nil
}

// containerStats leaves out what an ended container has no more.
func (r *Runtime) containerStats(ctx context.Context, c *container.Container) *cri.ContainerStats {
	out := &cri.ContainerStats{Attributes: &cri.ContainerAttributes{
		Id: c.ID, Metadata: c.Config.GetMetadata(), Labels: c.Config.GetLabels(), Annotations: c.Config.GetAnnotations(),
	}}
	if s, err := r.containers.Stats(c.ID); err == nil {
		out.Cpu, out.Memory, out.Swap, out.Io = cpu(s), memory(s), swap(s), ioUsage(s)
	}
	if u, err := r.containers.Usage(ctx, c.ID); err == nil {
		out.WritableLayer = &cri.FilesystemUsage{
			Timestamp: u.At.UnixNano(), FsId: &cri.FilesystemIdentifier{Mountpoint: r.cfg.DataDir}, UsedBytes: u64(uint64(u.Bytes)), InodesUsed: u64(uint64(u.Inodes)),
		}
	}
	return out
}

func cpu(s cgroup.Stats) *cri.CpuUsage {
	return &cri.CpuUsage{Timestamp: s.Time.UnixNano(), UsageCoreNanoSeconds: u64(s.CPUNanos), Psi: psi(s.CPUStall)}
}

func memory(s cgroup.Stats) *cri.MemoryUsage {
	m := &cri.MemoryUsage{
		Timestamp: s.Time.UnixNano(), WorkingSetBytes: u64(s.WorkingSet), UsageBytes: u64(s.Memory), RssBytes: u64(s.RSS),
		PageFaults: u64(s.PageFaults), MajorPageFaults: u64(s.MajorPageFaults), Psi: psi(s.MemoryStall),
	}
	if s.MemoryLimit > 0 {
		m.AvailableBytes = u64(s.Available())
	}
	return m
}

func swap(s cgroup.Stats) *cri.SwapUsage {
	return &cri.SwapUsage{Timestamp: s.Time.UnixNano(), SwapUsageBytes: u64(s.Swap)}
}

// ioUsage is nil where the kernel tells nothing of it.
func ioUsage(s cgroup.Stats) *cri.IoUsage {
	if s.IOStall == nil {
		return nil
	}
	return &cri.IoUsage{Timestamp: s.Time.UnixNano(), Psi: psi(s.IOStall)}
}

func psi(p *host.Pressure) *cri.PsiStats {
	if p == nil {
		return nil
	}
	data := func(d host.PSI) *cri.PsiData {
		return &cri.PsiData{Total: d.Total, Avg10: d.Avg10, Avg60: d.Avg60, Avg300: d.Avg300}
	}
	return &cri.PsiStats{Full: data(p.Full), Some: data(p.Some)}
}

func u64(v uint64) *cri.UInt64Value { return &cri.UInt64Value{Value: v} }

// PodSandboxStats reads one pod's use of resources.
func (r *Runtime) PodSandboxStats(ctx context.Context, id string) (*cri.PodSandboxStats, error) {
	s, err := r.sandboxes.Get(id)
	if err != nil {
		return nil, toStatus(err)
	}
	return r.podStats(ctx, s), nil
}

// ListPodSandboxStats reads the use of the ready pods that match.
func (r *Runtime) ListPodSandboxStats(ctx context.Context, f *cri.PodSandboxStatsFilter) ([]*cri.PodSandboxStats, error) {
	var out []*cri.PodSandboxStats
	for _, s := range r.sandboxes.List() {
		if !s.Ready || (f.GetId() != "" && !hasPrefix(s.ID, f.GetId())) || !selects(f.GetLabelSelector(), s.Config.GetLabels()) {
			continue
		}
		out = append(out, r.podStats(ctx, s))
	}
	return out, nil
}

func (r *Runtime) podStats(ctx context.Context, s *sandbox.Sandbox) *cri.PodSandboxStats {
	linux := &cri.LinuxPodSandboxStats{}
	if st, err := r.cgroups.Stat(s.Cgroup); err == nil {
		linux.Cpu, linux.Memory, linux.Io = cpu(st), memory(st), ioUsage(st)
		linux.Process = &cri.ProcessUsage{Timestamp: st.Time.UnixNano(), ProcessCount: u64(st.Pids)}
	}
	if s.NetNS() != "" {
		linux.Network = networkUsage(s.NetNS())
	}
	for _, c := range r.containers.List() {
		if c.SandboxID == s.ID && c.State == container.Running {
			linux.Containers = append(linux.Containers, r.containerStats(ctx, c))
		}
	}
	return &cri.PodSandboxStats{Linux: linux, Attributes: &cri.PodSandboxAttributes{
		Id: s.ID, Metadata: s.Config.GetMetadata(), Labels: s.Config.GetLabels(), Annotations: s.Config.GetAnnotations(),
	}}
}

// networkUsage reads the interfaces of a namespace; eth0 is the default one.
func networkUsage(ns string) *cri.NetworkUsage {
	var text []byte
	err := netns.Do(ns, func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	})
	if err != nil {
		return nil
	}
	out := &cri.NetworkUsage{Timestamp: time.Now().UnixNano()}
	for _, i := range parseNetDev(text) {
		if i.GetName() == "eth0" {
			out.DefaultInterface = i
		} else {
			out.Interfaces = append(out.Interfaces, i)
		}
	}
	return out
}

// parseNetDev reads /proc/net/dev, proc_pid_net(5), without the loopback.
func parseNetDev(text []byte) []*cri.NetworkInterfaceUsage {
	var out []*cri.NetworkInterfaceUsage
	for line := range bytes.Lines(text) {
		name, counters, ok := strings.Cut(string(line), ":")
		f := strings.Fields(counters)
		name = strings.TrimSpace(name)
		if !ok || len(f) < 11 || name == "lo" {
			continue
		}
		n := func(i int) *cri.UInt64Value {
			v, _ := strconv.ParseUint(f[i], 10, 64)
			return u64(v)
		}
		out = append(out, &cri.NetworkInterfaceUsage{Name: name, RxBytes: n(0), RxErrors: n(2), TxBytes: n(8), TxErrors: n(10)})
	}
	return out
}

// ImageFsInfo tells what images and writable layers take.
func (r *Runtime) ImageFsInfo(ctx context.Context) (*cri.ImageFsInfoResponse, error) {
	size, inodes, err := r.images.Usage(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	now := time.Now().UnixNano()
	fs := func(dir string, bytes, inodes int64) []*cri.FilesystemUsage {
		return []*cri.FilesystemUsage{{
			Timestamp: now, FsId: &cri.FilesystemIdentifier{Mountpoint: dir}, UsedBytes: u64(uint64(bytes)), InodesUsed: u64(uint64(inodes)),
		}}
	}
	var layerBytes, layerInodes int64
	for _, c := range r.containers.List() {
		if u, err := r.containers.Usage(ctx, c.ID); err == nil {
			layerBytes, layerInodes = layerBytes+u.Bytes, layerInodes+u.Inodes
		}
	}
	return &cri.ImageFsInfoResponse{
		ImageFilesystems:     fs(r.images.Dir(), size, inodes),
		ContainerFilesystems: fs(filepath.Join(r.cfg.DataDir, "containers"), layerBytes, layerInodes),
	}, nil
}

// metric is one value of the metrics endpoint, named as cAdvisor names it.
type metric struct {
	name, help string
	kind       cri.MetricType
	value      func(cgroup.Stats) uint64
}

var metrics = []metric{
	{"container_cpu_usage_nanoseconds_total", "Cumulative cpu time consumed in nanoseconds", cri.MetricType_COUNTER, func(s cgroup.Stats) uint64 { return s.CPUNanos }},
	{"container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals", cri.MetricType_COUNTER, func(s cgroup.Stats) uint64 { return s.Periods }},
	{"container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals", cri.MetricType_COUNTER, func(s cgroup.Stats) uint64 { return s.Throttled }},
	{"container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", cri.MetricType_GAUGE, func(s cgroup.Stats) uint64 { return s.Memory }},
	{"container_memory_working_set_bytes", "Current working set in bytes", cri.MetricType_GAUGE, func(s cgroup.Stats) uint64 { return s.WorkingSet }},
	{"container_memory_rss", "Size of RSS in bytes", cri.MetricType_GAUGE, func(s cgroup.Stats) uint64 { return s.RSS }},
	{"container_memory_swap", "Container swap usage in bytes", cri.MetricType_GAUGE, func(s cgroup.Stats) uint64 { return s.Swap }},
	{"container_oom_events_total", "Count of out of memory events observed for the container", cri.MetricType_COUNTER, func(s cgroup.Stats) uint64 { return s.OOMKills }},
	{"container_processes", "Number of processes running inside the container", cri.MetricType_GAUGE, func(s cgroup.Stats) uint64 { return s.Pids }},
}

var metricLabels = []string{"id", "name", "image"}

// ListMetricDescriptors names the metrics.
func (r *Runtime) ListMetricDescriptors(context.Context) ([]*cri.MetricDescriptor, error) {
	var out []*cri.MetricDescriptor
	for _, m := range metrics {
		out = append(out, &cri.MetricDescriptor{Name: m.name, Help: m.help, LabelKeys: metricLabels})
	}
	return out, nil
}

// ListPodSandboxMetrics reads the metrics of all ready pods.
func (r *Runtime) ListPodSandboxMetrics(context.Context) ([]*cri.PodSandboxMetrics, error) {
	byPod := map[string][]*cri.ContainerMetrics{}
	for _, c := range r.containers.List() {
		if c.State != container.Running {
			continue
		}
		if s, err := r.containers.Stats(c.ID); err == nil {
			labels := []string{c.ID, c.Config.GetMetadata().GetName(), c.ImageRef}
			byPod[c.SandboxID] = append(byPod[c.SandboxID], &cri.ContainerMetrics{ContainerId: c.ID, Metrics: values(s, labels)})
		}
	}
	var out []*cri.PodSandboxMetrics
	for _, s := range r.sandboxes.List() {
		if !s.Ready {
			continue
		}
		m := &cri.PodSandboxMetrics{PodSandboxId: s.ID, ContainerMetrics: byPod[s.ID]}
		if st, err := r.cgroups.Stat(s.Cgroup); err == nil {
			m.Metrics = values(st, []string{s.ID, "POD", ""})
		}
		out = append(out, m)
	}
	return out, nil
}

func values(s cgroup.Stats, labels []string) []*cri.Metric {
	var out []*cri.Metric
	for _, m := range metrics {
		out = append(out, &cri.Metric{Name: m.name, Timestamp: s.Time.UnixNano(), MetricType: m.kind, LabelValues: labels, Value: u64(m.value(s))})
	}
	return out
}
