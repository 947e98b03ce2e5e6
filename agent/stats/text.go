package stats

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"runtime"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/host"
)

// family writes one metric family of the Prometheus text format.
type family struct {
	w    *bufio.Writer
	name string
}

// seconds since the epoch, 0 for no time.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1e3
}

func newFamily(w *bufio.Writer, name, kind, help string) family {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	return family{w, name}
}

func (f family) put(labels string, v float64, ns int64) {
	if labels != "" {
		labels = "{" + labels + "}"
	}
	if ns > 0 {
		fmt.Fprintf(f.w, "%s%s %g %d\n", f.name, labels, v, ns/int64(time.Millisecond))
		return
	}
	fmt.Fprintf(f.w, "%s%s %g\n", f.name, labels, v)
}

// Resource is the kubelet's /metrics/resource (KEP-727).
func (p *Provider) Resource(ctx context.Context, out io.Writer) error {
	w := bufio.NewWriter(out)
	pods, err := p.Runtime.ListPodSandboxStats(ctx, nil)
	failed := 0.0
	if err != nil {
		failed = 1
	}
	c := newFamily(w, "container_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the container in core-seconds")
	eachContainer(pods, func(l string, s *criv1.ContainerStats) {
		if u := s.GetCpu().GetUsageCoreNanoSeconds(); u != nil {
			c.put(l, float64(u.Value)/1e9, s.Cpu.Timestamp)
		}
	})
	c = newFamily(w, "container_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the container in bytes")
	eachContainer(pods, func(l string, s *criv1.ContainerStats) {
		if u := s.GetMemory().GetWorkingSetBytes(); u != nil {
			c.put(l, float64(u.Value), s.Memory.Timestamp)
		}
	})
	if ns, err := host.CPUTime(); err == nil {
		newFamily(w, "node_cpu_usage_seconds_total", "counter",
			"[STABLE] Cumulative cpu time consumed by the node in core-seconds").put("", float64(ns)/1e9, 0)
	}
	newFamily(w, "node_memory_working_set_bytes", "gauge",
		"[STABLE] Current working set of the node in bytes").put("", float64(p.used(p.Available())), 0)
	c = newFamily(w, "pod_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the pod in core-seconds")
	eachPod(pods, func(l string, s *criv1.PodSandboxStats) {
		if u := s.GetLinux().GetCpu().GetUsageCoreNanoSeconds(); u != nil {
			c.put(l, float64(u.Value)/1e9, s.Linux.Cpu.Timestamp)
		}
	})
	c = newFamily(w, "pod_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the pod in bytes")
	eachPod(pods, func(l string, s *criv1.PodSandboxStats) {
		if u := s.GetLinux().GetMemory().GetWorkingSetBytes(); u != nil {
			c.put(l, float64(u.Value), s.Linux.Memory.Timestamp)
		}
	})
	newFamily(w, "resource_scrape_error", "gauge",
		"[STABLE] 1 if there was an error while getting container metrics, 0 otherwise").put("", failed, 0)
	return w.Flush()
}

func eachPod(pods []*criv1.PodSandboxStats, f func(labels string, s *criv1.PodSandboxStats)) {
	for _, s := range pods {
		if m := s.GetAttributes().GetMetadata(); m != nil {
			f(fmt.Sprintf("namespace=%q,pod=%q", m.Namespace, m.Name), s)
		}
	}
}

func eachContainer(pods []*criv1.PodSandboxStats, f func(labels string, s *criv1.ContainerStats)) {
	eachPod(pods, func(l string, s *criv1.PodSandboxStats) {
		for _, c := range s.GetLinux().GetContainers() {
			f(fmt.Sprintf("container=%q,%s", c.GetAttributes().GetMetadata().GetName(), l), c)
		}
	})
}

// Containers is a light /metrics/cadvisor: the families that dashboards use.
func (p *Provider) Containers(ctx context.Context, out io.Writer) error {
	w := bufio.NewWriter(out)
	pods, err := p.Runtime.ListPodSandboxStats(ctx, nil)
	if err != nil {
		return err
	}
	for _, m := range []struct {
		name, kind, help string
		get              func(*criv1.ContainerStats) *criv1.UInt64Value
		scale            float64
	}{
		{"container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds.",
			func(s *criv1.ContainerStats) *criv1.UInt64Value {
				return s.GetCpu().GetUsageCoreNanoSeconds()
			}, 1e-9},
		{"container_memory_usage_bytes", "gauge", "Current memory usage in bytes, including all memory regardless of when it was accessed",
			func(s *criv1.ContainerStats) *criv1.UInt64Value { return s.GetMemory().GetUsageBytes() }, 1},
		{"container_memory_working_set_bytes", "gauge", "Current working set in bytes.",
			func(s *criv1.ContainerStats) *criv1.UInt64Value { return s.GetMemory().GetWorkingSetBytes() }, 1},
		{"container_memory_rss", "gauge", "Size of RSS in bytes.",
			func(s *criv1.ContainerStats) *criv1.UInt64Value { return s.GetMemory().GetRssBytes() }, 1},
		{"container_fs_usage_bytes", "gauge", "Number of bytes that are consumed by the container on this filesystem.",
			func(s *criv1.ContainerStats) *criv1.UInt64Value { return s.GetWritableLayer().GetUsedBytes() }, 1},
	} {
		f := newFamily(w, m.name, m.kind, m.help)
		eachContainer(pods, func(l string, s *criv1.ContainerStats) {
			if v := m.get(s); v != nil {
				f.put(fmt.Sprintf("id=%q,%s", s.GetAttributes().GetId(), l), float64(v.Value)*m.scale, 0)
			}
		})
	}
	return w.Flush()
}

// Metrics tells of the agent itself.
func (p *Provider) Metrics(ctx context.Context, out io.Writer) error {
	w := bufio.NewWriter(out)
	pods, err := p.Runtime.ListPodSandboxStats(ctx, nil)
	containers := 0
	for _, s := range pods {
		containers += len(s.GetLinux().GetContainers())
	}
	newFamily(w, "kubelet_node_name", "gauge",
		"[STABLE] The node's name. The count is always 1.").put(fmt.Sprintf("node=%q", p.NodeName), 1, 0)
	newFamily(w, "kubelet_running_pods", "gauge",
		"Number of pods that have a running pod sandbox").put("", float64(len(pods)), 0)
	newFamily(w, "kubelet_running_containers", "gauge",
		"Number of containers currently running").put(`container_state="running"`, float64(containers), 0)
	if start, end := p.Shutdown(); !start.IsZero() {
		newFamily(w, "kubelet_graceful_shutdown_start_time_seconds", "gauge",
			"[ALPHA] Last graceful shutdown start time since unix epoch in seconds").put("", seconds(start), 0)
		newFamily(w, "kubelet_graceful_shutdown_end_time_seconds", "gauge",
			"[ALPHA] Last graceful shutdown end time since unix epoch in seconds").put("", seconds(end), 0)
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	newFamily(w, "go_goroutines", "gauge",
		"Number of goroutines that currently exist.").put("", float64(runtime.NumGoroutine()), 0)
	newFamily(w, "go_memstats_heap_inuse_bytes", "gauge",
		"Number of heap bytes that are in use.").put("", float64(mem.HeapInuse), 0)
	if flushErr := w.Flush(); err == nil {
		err = flushErr
	}
	return err
}
