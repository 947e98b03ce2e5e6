package stats

import (
	"context"
	"fmt"
	"io"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/metrics"
)

// Group is what a control group uses: that of a pod, or of one of its containers.
type Group struct {
	Namespace, Pod string
	// Container, ContainerID and Image are empty for a pod.
	Container, ContainerID, Image string
	// Path is the group's.
	Path    string
	Created time.Time
	Use     cgroup.Stats
	Disks   []cgroup.Disk
	// Processes is their number.
	Processes int
	// Files are what a container's processes have open; FileLimit is how many its first one
	// may have, -1 for any number, 0 where that is not known.
	Files     host.Files
	FileLimit int64
	// Limits are a container's; nil where there are none.
	Limits *criv1.LinuxContainerResources
	// LayerBytes is what a container's writable layer takes.
	LayerBytes int64
	Interfaces []Interface
	// FileSystems are the machine's; none of another group.
	FileSystems []host.BlockFileSystem
	// Known says which of these were measured.
	Known Known
}

// Known is a set of what was measured of a group.
type Known uint8

// Parts of a measurement that may be missing where an outside runtime makes it.
const (
	KnowsCPU    Known = 1 << iota // the time in all
	KnowsMemory                   // usage, working set, resident pages and faults
	KnowsSwap
	KnowsLayer
	knowsRest

	KnowsAll = knowsRest<<1 - 1
)

// Interface counts what went through an interface of a pod.
type Interface struct {
	Name           string
	Received, Sent Traffic
}

// Traffic is one direction of an interface.
type Traffic struct {
	Bytes, Packets, Errors, Dropped uint64
}

// put writes a sample of a group's.
type put func(v float64, labels ...string)

// groupFamily is a family with what each group has in it. Names and texts are
// cAdvisor's, which the kubelet serves in this place.
type groupFamily struct {
	name, kind string
	needs      Known
	help       string
	of         func(g *Group, put put)
}

// Containers is /metrics/cadvisor.
func (p *Provider) Containers(ctx context.Context, out io.Writer) error {
	groups, err := p.groups(ctx)
	if err != nil {
		return err
	}
	for i := range groups {
		groups[i].Disks = withIdle(groups[i].Disks, p.LayerDisks)
	}
	if p.Machine != nil {
		if machine, err := p.Machine(); err == nil {
			groups = append(groups, machine)
		}
	}
	page := metrics.NewPage(out)
	disks := diskNames{}
	for _, list := range [][]groupFamily{
		cpuFamilies, memoryFamilies, diskFamilies(disks), networkFamilies, otherFamilies,
	} {
		for _, f := range list {
			family := page.Family(f.name, f.kind, f.help)
			for i := range groups {
				g := &groups[i]
				if g.Known&f.needs != f.needs {
					continue
				}
				f.of(g, func(v float64, labels ...string) {
					family.Put(v, append(labels, "container", g.Container, "id", g.Path, "image", g.Image,
						"name", g.ContainerID, "namespace", g.Namespace, "pod", g.Pod)...)
				})
			}
		}
	}
	p.machine(page)
	return page.Flush()
}

// machine is what cAdvisor tells of the whole node.
func (p *Provider) machine(page *metrics.Page) {
	page.Family("machine_memory_bytes", metrics.Gauge, "Amount of memory installed on the machine.").
		Put(float64(p.MemoryBytes))
	if p.CPUs > 0 {
		page.Family("machine_cpu_cores", metrics.Gauge, "Number of logical CPU cores.").Put(float64(p.CPUs))
	}
}

// groups measures all pods, by the statistics of the CRI where the runtime has no
// better.
func (p *Provider) groups(ctx context.Context) ([]Group, error) {
	if p.Groups != nil {
		return p.Groups(ctx), nil
	}
	pods, err := p.Runtime.ListPodSandboxStats(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("measure pods: %w", err)
	}
	var images map[string]string
	if p.Images != nil {
		images = p.Images(ctx)
	}
	var out []Group
	for _, s := range pods {
		m := s.GetAttributes().GetMetadata()
		if m == nil || s.Linux == nil {
			continue
		}
		pod := Group{Namespace: m.Namespace, Pod: m.Name, Path: s.Attributes.Id}
		pod.use(s.Linux.Cpu, s.Linux.Memory, nil)
		for _, i := range interfacesOf(s.Linux.Network) {
			pod.Interfaces = append(pod.Interfaces, Interface{
				Name:     i.Name,
				Received: Traffic{Bytes: i.GetRxBytes().GetValue(), Errors: i.GetRxErrors().GetValue()},
				Sent:     Traffic{Bytes: i.GetTxBytes().GetValue(), Errors: i.GetTxErrors().GetValue()},
			})
		}
		out = append(out, pod)
		for _, c := range s.Linux.Containers {
			a := c.GetAttributes()
			g := Group{
				Namespace: m.Namespace, Pod: m.Name, Container: a.GetMetadata().GetName(), ContainerID: a.GetId(),
				Image: images[a.GetId()], Path: a.GetId(),
			}
			g.use(c.Cpu, c.Memory, c.Swap)
			if layer := c.WritableLayer; layer != nil {
				g.Known |= KnowsLayer
				g.LayerBytes = int64(layer.GetUsedBytes().GetValue())
			}
			out = append(out, g)
		}
	}
	return out, nil
}

func interfacesOf(n *criv1.NetworkUsage) []*criv1.NetworkInterfaceUsage {
	if n.GetDefaultInterface() == nil {
		return n.GetInterfaces()
	}
	return append([]*criv1.NetworkInterfaceUsage{n.DefaultInterface}, n.Interfaces...)
}

// use takes what the CRI tells of a group.
func (g *Group) use(c *criv1.CpuUsage, m *criv1.MemoryUsage, s *criv1.SwapUsage) {
	if n := c.GetUsageCoreNanoSeconds(); n != nil {
		g.Known |= KnowsCPU
		g.Use.CPUNanos = n.Value
	}
	if m != nil {
		g.Known |= KnowsMemory
		g.Use.Memory, g.Use.WorkingSet = m.GetUsageBytes().GetValue(), m.GetWorkingSetBytes().GetValue()
		g.Use.RSS = m.GetRssBytes().GetValue()
		g.Use.PageFaults, g.Use.MajorPageFaults = m.GetPageFaults().GetValue(), m.GetMajorPageFaults().GetValue()
	}
	if s != nil {
		g.Known |= KnowsSwap
		g.Use.Swap = s.GetSwapUsageBytes().GetValue()
	}
}

const perSecond = 1e9 // nanoseconds

// single makes a family's function of one that gives one value.
func single[T int | int64 | uint64 | float64](of func(g *Group) T) func(*Group, put) {
	return func(g *Group, put put) { put(float64(of(g))) }
}

var cpuFamilies = []groupFamily{
	{"container_cpu_usage_seconds_total", metrics.Counter, KnowsCPU, "Cumulative cpu time consumed in seconds.",
		func(g *Group, put put) { put(float64(g.Use.CPUNanos)/perSecond, "cpu", "total") }},
	{"container_cpu_user_seconds_total", metrics.Counter, KnowsAll, "Cumulative user cpu time consumed in seconds.",
		single(func(g *Group) float64 { return float64(g.Use.UserNanos) / perSecond })},
	{"container_cpu_system_seconds_total", metrics.Counter, KnowsAll, "Cumulative system cpu time consumed in seconds.",
		single(func(g *Group) float64 { return float64(g.Use.SystemNanos) / perSecond })},
	{"container_cpu_cfs_periods_total", metrics.Counter, KnowsAll, "Number of elapsed enforcement period intervals.",
		throttled(func(s *cgroup.Stats) float64 { return float64(s.Periods) })},
	{"container_cpu_cfs_throttled_periods_total", metrics.Counter, KnowsAll, "Number of throttled period intervals.",
		throttled(func(s *cgroup.Stats) float64 { return float64(s.Throttled) })},
	{"container_cpu_cfs_throttled_seconds_total", metrics.Counter, KnowsAll,
		"Total time duration the container has been throttled.",
		throttled(func(s *cgroup.Stats) float64 { return float64(s.ThrottledNanos) / perSecond })},
	{"container_pressure_cpu_waiting_seconds_total", metrics.Counter, KnowsAll,
		"Total time duration tasks in the container have waited due to CPU congestion.",
		stalled(func(s *cgroup.Stats) *host.Pressure { return s.CPUStall }, some)},
	{"container_pressure_cpu_stalled_seconds_total", metrics.Counter, KnowsAll,
		"Total time duration no tasks in the container could make progress due to CPU congestion.",
		stalled(func(s *cgroup.Stats) *host.Pressure { return s.CPUStall }, full)},
	{"container_spec_cpu_period", metrics.Gauge, KnowsAll, "CPU period of the container.",
		limit(func(l *criv1.LinuxContainerResources) (int64, bool) { return l.CpuPeriod, l.CpuPeriod > 0 })},
	{"container_spec_cpu_quota", metrics.Gauge, KnowsAll, "CPU quota of the container.",
		limit(func(l *criv1.LinuxContainerResources) (int64, bool) { return l.CpuQuota, l.CpuQuota > 0 })},
	{"container_spec_cpu_shares", metrics.Gauge, KnowsAll, "CPU share of the container.",
		limit(func(l *criv1.LinuxContainerResources) (int64, bool) { return l.CpuShares, true })},
}

// throttled leaves out groups without a quota, as cAdvisor does.
func throttled(of func(*cgroup.Stats) float64) func(*Group, put) {
	return func(g *Group, put put) {
		if g.Use.Periods > 0 || g.Limits.GetCpuQuota() > 0 {
			put(of(&g.Use))
		}
	}
}

func some(p *host.Pressure) host.PSI { return p.Some }
func full(p *host.Pressure) host.PSI { return p.Full }

// stalled leaves out what the kernel does not tell.
func stalled(of func(*cgroup.Stats) *host.Pressure, share func(*host.Pressure) host.PSI) func(*Group, put) {
	return func(g *Group, put put) {
		if p := of(&g.Use); p != nil {
			put(float64(share(p).Total) / 1e6) // the kernel counts microseconds
		}
	}
}

// limit is one of a container's limits, where it has it.
func limit(of func(*criv1.LinuxContainerResources) (int64, bool)) func(*Group, put) {
	return func(g *Group, put put) {
		if g.Limits == nil {
			return
		}
		if v, ok := of(g.Limits); ok {
			put(float64(v))
		}
	}
}

var memoryFamilies = []groupFamily{
	{"container_memory_cache", metrics.Gauge, KnowsAll, "Number of bytes of page cache memory.",
		single(func(g *Group) uint64 { return g.Use.Cache })},
	{"container_memory_failcnt", metrics.Counter, KnowsAll, "Number of memory usage hits limits",
		single(func(g *Group) uint64 { return g.Use.MemoryFailures })},
	{"container_memory_failures_total", metrics.Counter, KnowsMemory, "Cumulative count of memory allocation failures.",
		func(g *Group, put put) {
			put(float64(g.Use.PageFaults), "failure_type", "pgfault", "scope", "hierarchy")
			put(float64(g.Use.MajorPageFaults), "failure_type", "pgmajfault", "scope", "hierarchy")
		}},
	{"container_memory_mapped_file", metrics.Gauge, KnowsAll, "Size of memory mapped files in bytes.",
		single(func(g *Group) uint64 { return g.Use.MappedFile })},
	{"container_memory_max_usage_bytes", metrics.Gauge, KnowsAll, "Maximum memory usage recorded in bytes",
		func(g *Group, put put) {
			if g.Use.MaxMemory > 0 {
				put(float64(g.Use.MaxMemory))
			}
		}},
	{"container_memory_rss", metrics.Gauge, KnowsMemory, "Size of RSS in bytes.",
		single(func(g *Group) uint64 { return g.Use.RSS })},
	{"container_memory_swap", metrics.Gauge, KnowsSwap, "Container swap usage in bytes.",
		single(func(g *Group) uint64 { return g.Use.Swap })},
	{"container_memory_usage_bytes", metrics.Gauge, KnowsMemory,
		"Current memory usage in bytes, including all memory regardless of when it was accessed",
		single(func(g *Group) uint64 { return g.Use.Memory })},
	{"container_memory_working_set_bytes", metrics.Gauge, KnowsMemory, "Current working set in bytes.",
		single(func(g *Group) uint64 { return g.Use.WorkingSet })},
	{"container_oom_events_total", metrics.Counter, KnowsAll, "Count of out of memory events observed for the container",
		single(func(g *Group) uint64 { return g.Use.OOMKills })},
	{"container_pressure_memory_waiting_seconds_total", metrics.Counter, KnowsAll,
		"Total time duration tasks in the container have waited due to memory congestion.",
		stalled(func(s *cgroup.Stats) *host.Pressure { return s.MemoryStall }, some)},
	{"container_pressure_memory_stalled_seconds_total", metrics.Counter, KnowsAll,
		"Total time duration no tasks in the container could make progress due to memory congestion.",
		stalled(func(s *cgroup.Stats) *host.Pressure { return s.MemoryStall }, full)},
	{"container_spec_memory_limit_bytes", metrics.Gauge, KnowsAll, "Memory limit for the container.",
		func(g *Group, put put) {
			if g.Limits == nil {
				return
			}
			if in := g.Use.MemoryLimit; in > 0 { // what the kernel made of it
				put(float64(in))
			} else {
				put(float64(max(0, g.Limits.MemoryLimitInBytes)))
			}
		}},
	{"container_spec_memory_reservation_limit_bytes", metrics.Gauge, KnowsAll,
		"Memory reservation limit for the container.",
		limit(func(*criv1.LinuxContainerResources) (int64, bool) { return 0, true })},
	{"container_spec_memory_swap_limit_bytes", metrics.Gauge, KnowsAll, "Memory swap limit for the container.",
		limit(func(l *criv1.LinuxContainerResources) (int64, bool) { return max(0, l.MemorySwapLimitInBytes), true })},
}

var networkFamilies = []groupFamily{
	{"container_network_receive_bytes_total", metrics.Counter, 0, "Cumulative count of bytes received",
		traffic(func(i *Interface) uint64 { return i.Received.Bytes })},
	{"container_network_receive_errors_total", metrics.Counter, 0, "Cumulative count of errors encountered while receiving",
		traffic(func(i *Interface) uint64 { return i.Received.Errors })},
	{"container_network_receive_packets_dropped_total", metrics.Counter, KnowsAll,
		"Cumulative count of packets dropped while receiving",
		traffic(func(i *Interface) uint64 { return i.Received.Dropped })},
	{"container_network_receive_packets_total", metrics.Counter, KnowsAll, "Cumulative count of packets received",
		traffic(func(i *Interface) uint64 { return i.Received.Packets })},
	{"container_network_transmit_bytes_total", metrics.Counter, 0, "Cumulative count of bytes transmitted",
		traffic(func(i *Interface) uint64 { return i.Sent.Bytes })},
	{"container_network_transmit_errors_total", metrics.Counter, 0,
		"Cumulative count of errors encountered while transmitting",
		traffic(func(i *Interface) uint64 { return i.Sent.Errors })},
	{"container_network_transmit_packets_dropped_total", metrics.Counter, KnowsAll,
		"Cumulative count of packets dropped while transmitting",
		traffic(func(i *Interface) uint64 { return i.Sent.Dropped })},
	{"container_network_transmit_packets_total", metrics.Counter, KnowsAll, "Cumulative count of packets transmitted",
		traffic(func(i *Interface) uint64 { return i.Sent.Packets })},
}

func traffic(of func(*Interface) uint64) func(*Group, put) {
	return func(g *Group, put put) {
		for i := range g.Interfaces {
			put(float64(of(&g.Interfaces[i])), "interface", g.Interfaces[i].Name)
		}
	}
}

// opened is of containers alone: a pod's files would be looked at twice.
func opened(of func(host.Files) int) func(*Group, put) {
	return func(g *Group, put put) {
		if g.Container != "" && g.Processes > 0 {
			put(float64(of(g.Files)))
		}
	}
}

var otherFamilies = []groupFamily{
	{"container_last_seen", metrics.Gauge, KnowsAll, "Last time a container was seen by the exporter",
		func(g *Group, put put) {
			if !g.Use.Time.IsZero() {
				put(float64(g.Use.Time.Unix()))
			}
		}},
	{"container_processes", metrics.Gauge, KnowsAll, "Number of processes running inside the container.",
		func(g *Group, put put) {
			if g.Processes > 0 {
				put(float64(g.Processes))
			}
		}},
	{"container_file_descriptors", metrics.Gauge, KnowsAll, "Number of open file descriptors for the container.",
		opened(func(f host.Files) int { return f.Open })},
	{"container_sockets", metrics.Gauge, KnowsAll, "Number of open sockets for the container.",
		opened(func(f host.Files) int { return f.Sockets })},
	{"container_ulimits_soft", metrics.Gauge, KnowsAll,
		"Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
		func(g *Group, put put) {
			if g.FileLimit != 0 {
				put(float64(g.FileLimit), "ulimit", "max_open_files")
			}
		}},
	{"container_threads", metrics.Gauge, KnowsAll, "Number of threads running inside the container",
		func(g *Group, put put) {
			if g.Use.Pids > 0 {
				put(float64(g.Use.Pids))
			}
		}},
	{"container_threads_max", metrics.Gauge, KnowsAll,
		"Maximum number of threads allowed inside the container, infinity if value is zero",
		func(g *Group, put put) {
			if g.Use.Pids > 0 {
				put(float64(g.Use.PidsLimit))
			}
		}},
	{"container_start_time_seconds", metrics.Gauge, KnowsAll, "Start time of the container since unix epoch in seconds.",
		func(g *Group, put put) {
			if !g.Created.IsZero() {
				put(float64(g.Created.Unix()))
			}
		}},
}
