package evict

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is one measured quantity, in bytes or numbers.
type Signal struct{ Available, Capacity int64 }

// Measure reads the signals of the machine. The memory is given by the caller.
func Measure(nodeDir, imageDir string, memory Signal) map[string]Signal {
	out := map[string]Signal{"memory.available": memory}
	for name, dir := range map[string]string{"nodefs": nodeDir, "imagefs": imageDir} {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			continue
		}
		out[name+".available"] = Signal{int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize}
		out[name+".inodesFree"] = Signal{int64(st.Ffree), int64(st.Files)}
	}
	if s, err := Tasks(); err == nil {
		out["pid.available"] = s
	}
	return out
}

// Tasks is how many more processes and threads the kernel lets run, of how
// many at most.
func Tasks() (Signal, error) { return tasks("/proc") }

// tasks is how many more tasks the kernel lets run, of how many at most
// (proc(5): kernel/pid_max, kernel/threads-max, loadavg).
func tasks(proc string) (Signal, error) {
	limit := int64(math.MaxInt64)
	for _, file := range []string{"pid_max", "threads-max"} {
		data, err := os.ReadFile(filepath.Join(proc, "sys/kernel", file))
		if err != nil {
			return Signal{}, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			return Signal{}, err
		}
		limit = min(limit, n)
	}
	data, err := os.ReadFile(filepath.Join(proc, "loadavg"))
	if err != nil {
		return Signal{}, err
	}
	var a, b, c string
	var running, all int64
	if _, err := fmt.Sscanf(string(data), "%s %s %s %d/%d", &a, &b, &c, &running, &all); err != nil {
		return Signal{}, fmt.Errorf("loadavg: %w", err)
	}
	return Signal{Available: limit - all, Capacity: limit}, nil
}

// Pressure returns the conditions that hold, given hard thresholds as in
// memory.available: 100Mi or nodefs.available: 10%.
func Pressure(thresholds map[string]string, have map[string]Signal) map[v1.NodeConditionType]bool {
	out := map[v1.NodeConditionType]bool{}
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
			out[v1.NodeMemoryPressure] = true
		case "pid.available":
			out[v1.NodePIDPressure] = true
		default:
			out[v1.NodeDiskPressure] = true
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
