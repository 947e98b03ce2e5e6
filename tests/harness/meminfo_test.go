package harness

import (
	"testing"

	"github.com/shoal-project/shoal/agent/cgroup"
)

// TestMeminfo: what others use is not in it, and the rest is as it was.
func TestMeminfo(t *testing.T) {
	const host = "MemTotal:       24683656 kB\nMemFree:         2202408 kB\nMemAvailable:   21616608 kB\n" +
		"Buffers:          191564 kB\nCached:          9000000 kB\nSwapTotal:             0 kB\n"
	const want = "MemTotal:       24683656 kB\nMemFree:        24682632 kB\nMemAvailable:   24682856 kB\n" +
		"Buffers:               0 kB\nCached:              300 kB\nSwapTotal:             0 kB\n"
	got := string(meminfoOf([]byte(host), cgroup.Stats{Memory: 1 << 20, WorkingSet: 800 << 10, Cache: 300 << 10}))
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
