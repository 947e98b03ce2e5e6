package qos

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// F PID-1, PID-2: pods do not take the last process numbers of the node.
func TestPIDLimits(t *testing.T) {
	number := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		capacity  int64
		each      *int64
		reserved  string
		all, want int64
	}{
		"defaults":              {4194304, number(4096), "", 4193304, 4096},
		"old pid_max":           {32768, number(4096), "", 31768, 4096},
		"tiny":                  {2000, number(4096), "", 1800, -1},
		"reserved":              {32768, number(100), "5k", 27768, 100},
		"reserved nothing":      {32768, number(100), "0", 32768, 100},
		"unlimited":             {32768, number(-1), "", 31768, -1},
		"not said":              {32768, nil, "", 31768, -1},
		"more than the node":    {32768, number(100000), "", 31768, -1},
		"all of it is reserved": {1000, number(10), "1000", 0, 0},
	} {
		reserved := corev1.ResourceList{}
		if c.reserved != "" {
			reserved[resourcePID] = resource.MustParse(c.reserved)
		}
		l, err := newPIDLimits(c.capacity, c.each, reserved)
		if c.all == 0 {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
			continue
		}
		if err != nil || *l.all != c.all || *l.each != c.want {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
}
