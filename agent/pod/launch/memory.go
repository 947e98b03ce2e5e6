package launch

import (
	"maps"
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// unified are the v2 control files of a container.
func (h *Host) unified(p *corev1.Pod, c *corev1.Container) map[string]string {
	own := h.MemoryFiles(p, c)
	if len(own) == 0 {
		return h.Unified
	}
	out := maps.Clone(h.Unified)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, own)
	return out
}

// MemoryFiles are the v2 control files of a container's memory that depend on what it asks for,
// empty where the node has none.
func (h *Host) MemoryFiles(p *corev1.Pod, c *corev1.Container) map[string]string {
	out := map[string]string{}
	put := func(file string, bytes int64) { out[file] = strconv.FormatInt(bytes, 10) }
	class := QoS(p)
	if h.SwapBytes > 0 {
		put("memory.swap.max", h.swap(p, c))
	}
	if asked := c.Resources.Requests.Memory().Value(); h.Reserve && class == corev1.PodQOSGuaranteed {
		put("memory.min", asked)
	} else if h.Reserve {
		put("memory.low", asked)
	}
	if h.Throttle > 0 && class != corev1.PodQOSGuaranteed {
		if high := h.high(p, c); high > 0 {
			put("memory.high", high)
		} else {
			out["memory.high"] = "max"
		}
	}
	return out
}

// swap is how many bytes of swap a container may use: as much in proportion as it asks for of
// the machine's memory (KEP-2400, LimitedSwap). Those of pods that are critical or not of the
// class Burstable use none, nor do those that may not have more memory than they ask for.
func (h *Host) swap(p *corev1.Pod, c *corev1.Container) int64 {
	asked, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	critical := p.Spec.Priority != nil && *p.Spec.Priority >= CriticalPriority
	if h.MemoryBytes == 0 || critical || ofManifest(p) || QoS(p) != corev1.PodQOSBurstable ||
		asked.IsZero() || asked.Cmp(*limit) == 0 {
		return 0
	}
	return int64(float64(asked.Value()) / float64(h.MemoryBytes) * float64(h.SwapBytes))
}

// high is where a container is slowed down: on the way from what it asks for to its limit, or
// to what pods may have together, in whole pages; 0 for nowhere (KEP-2570).
func (h *Host) high(p *corev1.Pod, c *corev1.Container) int64 {
	limits := ContainerLimits(p.Spec.Resources, &c.Resources)
	asked, limit := c.Resources.Requests.Memory().Value(), limits.Memory().Value()
	if limit == 0 {
		limit = h.Allocatable.Memory().Value()
	}
	page := int64(os.Getpagesize())
	high := int64(float64(asked)+h.Throttle*float64(limit-asked)) / page * page
	if high <= asked || high >= limit {
		return 0
	}
	return high
}

// CriticalPriority is that of system-cluster-critical and above.
const CriticalPriority = 2000000000

// ofManifest tells whether a pod is of a manifest on the node, or of one that a server has.
func ofManifest(p *corev1.Pod) bool {
	from := p.Annotations["kubernetes.io/config.source"]
	return from == "file" || from == "http"
}
