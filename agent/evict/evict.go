package evict

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shoal-project/shoal/agent/host"
)

// Signal is one measured quantity, in bytes or numbers.
type Signal struct{ Available, Capacity int64 }

// Measure reads the signals of the machine. The memory is given by the caller.
func Measure(nodeDir, imageDir string, memory Signal) map[string]Signal {
	out := map[string]Signal{"memory.available": memory}
	for name, dir := range map[string]string{"nodefs": nodeDir, "imagefs": imageDir} {
		space, err := host.Space(dir)
		if err != nil {
			continue
		}
		out[name+".available"] = Signal{int64(space.Available), int64(space.Bytes)}
		out[name+".inodesFree"] = Signal{int64(space.InodesFree), int64(space.Inodes)}
	}
	if t, err := host.ReadTasks(); err == nil {
		out["pid.available"] = tasks(t)
	}
	return out
}

// tasks is how many more processes and threads the kernel lets run, of how
// many at most.
func tasks(t host.Tasks) Signal {
	return Signal{Available: t.Limit() - t.Count, Capacity: t.Limit()}
}

// Pressure returns the conditions that hold, given hard thresholds as in
// memory.available: 100Mi or nodefs.available: 10%.
func Pressure(thresholds map[string]string, have map[string]Signal) map[corev1.NodeConditionType]bool {
	out := map[corev1.NodeConditionType]bool{}
	for name, text := range thresholds {
		s, ok := have[name]
		if !ok || s.Capacity == 0 {
			continue
		}
		limit, err := Limit(text, s.Capacity)
		if err != nil || s.Available >= limit {
			continue
		}
		switch name {
		case "memory.available":
			out[corev1.NodeMemoryPressure] = true
		case "pid.available":
			out[corev1.NodePIDPressure] = true
		default:
			out[corev1.NodeDiskPressure] = true
		}
	}
	return out
}

// Limit reads a threshold: a quantity, or a share of the capacity.
func Limit(text string, capacity int64) (int64, error) {
	if p, ok := strings.CutSuffix(text, "%"); ok {
		f, err := strconv.ParseFloat(p, 64)
		if err != nil || f < 0 || f > 100 {
			return 0, fmt.Errorf("threshold %q is not a percentage", text)
		}
		return int64(float64(capacity) * f / 100), nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("threshold %q: %w", text, err)
	}
	return q.Value(), nil
}

// Keep returns what must be left of a resource, by its total, for a threshold not
// to be met: what is written with less left only has pods evicted.
func Keep(thresholds map[string]string, signal string) func(total uint64) uint64 {
	return func(total uint64) uint64 {
		keep, err := Limit(thresholds[signal], int64(total))
		if err != nil {
			return 0 // no threshold, or none that can be read: no condition follows from it either
		}
		return uint64(keep)
	}
}
