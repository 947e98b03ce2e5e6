package launch

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CFS is how CPU limits are enforced by the kernel's scheduler (CFS bandwidth control).
type CFS struct {
	// Off: they are not.
	Off bool
	// Period of quotas in microseconds; 0: cfsPeriod.
	Period int64
}

// cfsPeriod is the kernel's own period of CPU quotas, in microseconds.
const cfsPeriod = 100000

func (c CFS) period() int64 {
	if c.Period == 0 {
		return cfsPeriod
	}
	return c.Period
}

// Shares converts milli CPUs to cgroup v1 shares; 2 is the kernel's least.
func Shares(milli int64) int64 {
	if milli == 0 {
		return 2
	}
	return min(max(2, milli*1024/1000), 262144)
}

// quota converts milli CPUs to a CFS quota in microseconds a period, 0 for none; the
// kernel's least is 1 ms.
func (c CFS) quota(milli int64) int64 {
	if milli == 0 || c.Off {
		return 0
	}
	return max(1000, milli*c.period()/1000)
}

// unlimited is the quota of what is never throttled.
const unlimited = -1

// QoS is the pod's quality of service class.
func QoS(p *corev1.Pod) corev1.PodQOSClass {
	if p.Status.QOSClass != "" {
		return p.Status.QOSClass
	}
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	guaranteed := true
	one := func(r *corev1.ResourceRequirements) {
		for _, n := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if q := r.Requests[n]; !q.IsZero() {
				sum := requests[n]
				sum.Add(q)
				requests[n] = sum
			}
			q := r.Limits[n]
			if q.IsZero() {
				guaranteed = false
				continue
			}
			sum := limits[n]
			sum.Add(q)
			limits[n] = sum
		}
	}
	if p.Spec.Resources != nil {
		one(p.Spec.Resources)
	} else {
		for i := range p.Spec.InitContainers {
			one(&p.Spec.InitContainers[i].Resources)
		}
		for i := range p.Spec.Containers {
			one(&p.Spec.Containers[i].Resources)
		}
	}
	if len(requests) == 0 && len(limits) == 0 {
		return corev1.PodQOSBestEffort
	}
	if guaranteed {
		for n, q := range requests {
			if l := limits[n]; l.Cmp(q) != 0 {
				return corev1.PodQOSBurstable
			}
		}
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// oomScoreAdj says how soon the kernel kills the container when memory is
// out: guaranteed pods last, best effort first, the others by how little they
// asked for.
func oomScoreAdj(p *corev1.Pod, c *corev1.Container, capacity int64) int64 {
	if p.Spec.Priority != nil && *p.Spec.Priority >= 2000001000 { // system-node-critical
		return -997
	}
	switch QoS(p) {
	case corev1.PodQOSGuaranteed:
		return -997
	case corev1.PodQOSBestEffort:
		return 1000
	}
	if capacity <= 0 {
		return 999
	}
	share := sharedRequest(p)
	score := 1000 - 1000*(c.Resources.Requests.Memory().Value()+share)/capacity
	if len(p.Spec.Containers) > 0 && sidecar(c) { // it goes no sooner than those that it is for
		least := p.Spec.Containers[0].Resources.Requests.Memory().Value()
		for i := range p.Spec.Containers {
			least = min(least, p.Spec.Containers[i].Resources.Requests.Memory().Value())
		}
		score = min(score, 1000-1000*(least+share)/capacity)
	}
	return min(max(score, 3), 999)
}

// sharedRequest is each container's share of the memory that the pod as a whole asks
// for beyond its containers.
func sharedRequest(p *corev1.Pod) int64 {
	n := int64(len(p.Spec.Containers) + len(p.Spec.InitContainers))
	if p.Spec.Resources == nil || p.Spec.Resources.Requests.Memory().IsZero() || n == 0 {
		return 0
	}
	asked := resourcehelper.AggregateContainerRequests(p, resourcehelper.PodResourcesOptions{})
	return (p.Spec.Resources.Requests.Memory().Value() - asked.Memory().Value()) / n
}

func sidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// containerResources limits the container.
func containerResources(c *container) error {
	r := Resources(c.Host, c.Pod, c.Container)
	if c.Pinned != nil {
		pinned := c.Pinned(c.Container)
		r.CpusetCpus, r.CpusetMems = pinned.CPUs, pinned.Mems
		r.CpuQuota = pinned.Quota(r.CpuQuota)
	}
	c.config.Linux.Resources = r
	return nil
}

// sandboxResources limits the pod as a whole, in its own cgroup.
func sandboxResources(s *sandbox) error {
	limits := s.Host.PodLimits(s.Pod)
	s.config.Linux.CgroupParent = s.Host.CgroupParent(s.Pod)
	s.config.Linux.Resources = &criv1.LinuxContainerResources{
		CpuShares:          limits.CPUShares,
		CpuQuota:           limits.CPUQuota,
		CpuPeriod:          limits.CPUPeriod,
		MemoryLimitInBytes: limits.MemoryBytes,
	}
	return nil
}

// Resources is what the runtime limits the container to.
func Resources(host *Host, p *corev1.Pod, c *corev1.Container) *criv1.LinuxContainerResources {
	limits := ContainerLimits(p.Spec.Resources, &c.Resources)
	request, asked := c.Resources.Requests[corev1.ResourceCPU]
	if !asked {
		request = *limits.Cpu()
	}
	return &criv1.LinuxContainerResources{
		CpuShares:          Shares(request.MilliValue()),
		CpuPeriod:          host.CFS.period(),
		CpuQuota:           host.CFS.quota(limits.Cpu().MilliValue()),
		MemoryLimitInBytes: limits.Memory().Value(),
		OomScoreAdj:        oomScoreAdj(p, c, host.MemoryBytes),
		Unified:            host.unified(p, c),
		HugepageLimits:     hugepages(p, c, host.PageSizes),
	}
}

// ContainerLimits are the cpu and memory that a container is limited to: its own
// limit, or where it has none, its pod's.
func ContainerLimits(pod, own *corev1.ResourceRequirements) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		q := own.Limits[name]
		if q.IsZero() && pod != nil {
			q = pod.Limits[name]
		}
		if !q.IsZero() {
			out[name] = q
		}
	}
	return out
}

// hugepages limits every size of huge pages that the node has, to nothing
// where the container, or else the pod, names no limit.
func hugepages(p *corev1.Pod, c *corev1.Container, sizes []string) []*criv1.HugepageLimit {
	var out []*criv1.HugepageLimit
	for _, size := range sizes {
		name := corev1.ResourceName(corev1.ResourceHugePagesPrefix + size)
		q, ok := c.Resources.Limits[name]
		if !ok && p.Spec.Resources != nil {
			q = p.Spec.Resources.Limits[name]
		}
		// The kernel says 2MB for what the API calls 2Mi.
		out = append(out, &criv1.HugepageLimit{
			PageSize: strings.TrimSuffix(size, "i") + "B",
			Limit:    uint64(q.Value()),
		})
	}
	return out
}

// Limits is what a pod as a whole is limited to.
type Limits struct {
	// CPUShares (v1 scale), CPUQuota (microseconds a CPUPeriod) and
	// MemoryBytes; zero means none. A quota of -1 lifts one that there was.
	CPUShares, CPUQuota, CPUPeriod, MemoryBytes int64
	// MemoryMin and MemoryLow are kept from being reclaimed, in bytes.
	MemoryMin, MemoryLow int64
}

// PodLimits sums what the pod's cgroup must allow: the sum of its containers
// or the greatest init container, whichever is more; a limit only when every
// container has one. A pod with CPUs of its own has no quota of CPU.
func (h *Host) PodLimits(p *corev1.Pod) Limits {
	var req, cpu, mem peak
	cpuAll, memAll := true, true
	add := func(c *corev1.Container, init, sidecar bool) {
		q := c.Resources.Requests.Cpu()
		if q.IsZero() {
			q = c.Resources.Limits.Cpu()
		}
		req.add(q.MilliValue(), init, sidecar)
		cpu.add(c.Resources.Limits.Cpu().MilliValue(), init, sidecar)
		mem.add(c.Resources.Limits.Memory().Value(), init, sidecar)
		cpuAll = cpuAll && !c.Resources.Limits.Cpu().IsZero()
		memAll = memAll && !c.Resources.Limits.Memory().IsZero()
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		add(c, true, sidecar(c))
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i], false, false)
	}
	l := Limits{CPUShares: Shares(req.value() + p.Spec.Overhead.Cpu().MilliValue()), CPUPeriod: h.CFS.period()}
	if cpuAll {
		l.CPUQuota = h.CFS.quota(cpu.value() + p.Spec.Overhead.Cpu().MilliValue())
	}
	if memAll {
		l.MemoryBytes = mem.value() + p.Spec.Overhead.Memory().Value()
	}
	if r := p.Spec.Resources; r != nil {
		if !r.Limits.Cpu().IsZero() {
			l.CPUQuota = h.CFS.quota(r.Limits.Cpu().MilliValue() + p.Spec.Overhead.Cpu().MilliValue())
		}
		if !r.Limits.Memory().IsZero() {
			l.MemoryBytes = r.Limits.Memory().Value() + p.Spec.Overhead.Memory().Value()
		}
		if !r.Requests.Cpu().IsZero() {
			l.CPUShares = Shares(r.Requests.Cpu().MilliValue() + p.Spec.Overhead.Cpu().MilliValue())
		}
	}
	if h.Unthrottled != nil && h.Unthrottled(p) {
		l.CPUQuota = unlimited
	}
	if h.Reserve {
		asked := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
		switch QoS(p) {
		case corev1.PodQOSGuaranteed:
			l.MemoryMin = asked.Memory().Value()
		case corev1.PodQOSBurstable:
			l.MemoryLow = asked.Memory().Value()
		}
	}
	return l
}

// peak is the most that a pod uses at once while its init containers run one
// after the other beside the sidecars begun before, and then its main ones.
type peak struct{ main, sidecars, init int64 }

func (p *peak) add(v int64, init, sidecar bool) {
	switch {
	case sidecar:
		p.sidecars += v
		p.init = max(p.init, p.sidecars)
	case init:
		p.init = max(p.init, p.sidecars+v)
	default:
		p.main += v
	}
}

func (p *peak) value() int64 { return max(p.main+p.sidecars, p.init) }
