package stats

import (
	"context"
	"io"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/metrics"
)

// Resource is the kubelet's /metrics/resource (KEP-727).
func (p *Provider) Resource(ctx context.Context, out io.Writer) error {
	page := metrics.NewPage(out)
	pods, err := p.use(ctx)
	failed := 0.0
	if err != nil {
		failed = 1
	}
	var began map[string]time.Time
	if p.Began != nil {
		began = p.Began(ctx)
	}
	f := page.Family("container_cpu_usage_seconds_total", metrics.Counter,
		"[STABLE] Cumulative cpu time consumed by the container in core-seconds")
	eachContainer(pods, func(s *criv1.ContainerStats, labels ...string) {
		if u := s.GetCpu().GetUsageCoreNanoSeconds(); u != nil {
			f.PutAt(float64(u.Value)/perSecond, at(s.Cpu.Timestamp), labels...)
		}
	})
	f = page.Family("container_memory_working_set_bytes", metrics.Gauge,
		"[STABLE] Current working set of the container in bytes")
	eachContainer(pods, func(s *criv1.ContainerStats, labels ...string) {
		if u := s.GetMemory().GetWorkingSetBytes(); u != nil {
			f.PutAt(float64(u.Value), at(s.Memory.Timestamp), labels...)
		}
	})
	f = page.Family("container_start_time_seconds", metrics.Gauge,
		"[STABLE] Start time of the container since unix epoch in seconds")
	eachContainer(pods, func(s *criv1.ContainerStats, labels ...string) {
		if t := began[s.GetAttributes().GetId()]; !t.IsZero() {
			f.Put(seconds(t), labels...)
		}
	})
	f = page.Family("container_swap_usage_bytes", metrics.Gauge,
		"[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems")
	eachContainer(pods, func(s *criv1.ContainerStats, labels ...string) {
		if u := s.GetSwap().GetSwapUsageBytes(); u != nil {
			f.PutAt(float64(u.Value), at(s.Swap.Timestamp), labels...)
		}
	})
	if ns, err := host.CPUTime(); err == nil {
		page.Family("node_cpu_usage_seconds_total", metrics.Counter,
			"[STABLE] Cumulative cpu time consumed by the node in core-seconds").Put(float64(ns) / perSecond)
	}
	page.Family("node_memory_working_set_bytes", metrics.Gauge,
		"[STABLE] Current working set of the node in bytes").Put(float64(p.used(p.Available())))
	if _, used, ok := host.Swap(); ok {
		page.Family("node_swap_usage_bytes", metrics.Gauge,
			"[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems").Put(float64(used))
	}
	f = page.Family("pod_cpu_usage_seconds_total", metrics.Counter,
		"[STABLE] Cumulative cpu time consumed by the pod in core-seconds")
	eachPod(pods, func(s *criv1.PodSandboxStats, labels ...string) {
		if u := s.GetLinux().GetCpu().GetUsageCoreNanoSeconds(); u != nil {
			f.PutAt(float64(u.Value)/perSecond, at(s.Linux.Cpu.Timestamp), labels...)
		}
	})
	f = page.Family("pod_memory_working_set_bytes", metrics.Gauge,
		"[STABLE] Current working set of the pod in bytes")
	eachPod(pods, func(s *criv1.PodSandboxStats, labels ...string) {
		if u := s.GetLinux().GetMemory().GetWorkingSetBytes(); u != nil {
			f.PutAt(float64(u.Value), at(s.Linux.Memory.Timestamp), labels...)
		}
	})
	f = page.Family("pod_swap_usage_bytes", metrics.Gauge,
		"[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems")
	eachPod(pods, func(s *criv1.PodSandboxStats, labels ...string) {
		var sum uint64
		known := false
		for _, c := range s.GetLinux().GetContainers() {
			if u := c.GetSwap().GetSwapUsageBytes(); u != nil {
				sum, known = sum+u.Value, true
			}
		}
		if known {
			f.Put(float64(sum), labels...)
		}
	})
	page.Family("resource_scrape_error", metrics.Gauge,
		"[STABLE] 1 if there was an error while getting container metrics, 0 otherwise").Put(failed)
	return page.Flush()
}

// at is a time that the CRI tells; zero where it tells none.
func at(ns int64) time.Time {
	if ns <= 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

func eachPod(pods []*criv1.PodSandboxStats, f func(s *criv1.PodSandboxStats, labels ...string)) {
	for _, s := range pods {
		if m := s.GetAttributes().GetMetadata(); m != nil {
			f(s, "namespace", m.Namespace, "pod", m.Name)
		}
	}
}

func eachContainer(pods []*criv1.PodSandboxStats, f func(s *criv1.ContainerStats, labels ...string)) {
	eachPod(pods, func(s *criv1.PodSandboxStats, labels ...string) {
		for _, c := range s.GetLinux().GetContainers() {
			f(c, append([]string{"container", c.GetAttributes().GetMetadata().GetName()}, labels...)...)
		}
	})
}

func (p *Provider) use(ctx context.Context) ([]*criv1.PodSandboxStats, error) {
	if p.Use != nil {
		return p.Use(), nil
	}
	return p.Runtime.ListPodSandboxStats(ctx, nil)
}
