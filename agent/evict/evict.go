package evict

import (
	"fmt"
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
	return out
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
		if name == "memory.available" {
			out[v1.NodeMemoryPressure] = true
		} else {
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
