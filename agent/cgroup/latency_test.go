package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestLatencyChanges(t *testing.T) {
	for _, tt := range []struct {
		name, now string
		disks     []string
		target    time.Duration
		want      []string
	}{
		{"none before", "", []string{"8:0", "259:0"}, 5 * time.Millisecond, []string{"259:0 target=5000", "8:0 target=5000"}},
		{"as it is", "8:0 target=5000\n", []string{"8:0"}, 5 * time.Millisecond, nil},
		{"another target", "8:0 target=5000\n", []string{"8:0"}, 1500 * time.Microsecond, []string{"8:0 target=1500"}},
		{"another disk", "8:0 target=5000\n", []string{"8:16"}, 5 * time.Millisecond,
			[]string{"8:0 target=0", "8:16 target=5000"}},
		{"lifted", "8:0 target=5000\n259:0 target=7\n", []string{"8:0"}, 0, []string{"8:0 target=0", "259:0 target=0"}},
		{"nothing to lift", "", nil, 0, nil},
		{"a line that is none", "8:0\n\n", []string{"8:0"}, time.Millisecond, []string{"8:0 target=1000"}},
	} {
		if got := latencyChanges(tt.now, tt.disks, tt.target); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestIOLatencyFile writes to a file that stands for the kernel's.
func TestIOLatencyFile(t *testing.T) {
	r := &Root{mode: V2, unified: t.TempDir(), controllers: []string{"io"}}
	if err := os.Mkdir(filepath.Join(r.unified, "kubepods"), 0o755); err != nil {
		t.Fatal(err)
	}
	set := func() {
		t.Helper()
		if err := r.SetIOLatency("/kubepods", []string{"8:0"}, 20*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	set() // a kernel without: no error
	if r.HasIOLatency("/kubepods") {
		t.Error("io.latency is said to be there")
	}
	file := filepath.Join(r.unified, "kubepods", ioLatency)
	if _, err := os.Stat(file); err == nil {
		t.Error("the file was made")
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	set()
	if got, err := os.ReadFile(file); string(got) != "8:0 target=20000" || !r.HasIOLatency("/kubepods") {
		t.Errorf("the file says %q (%v)", got, err)
	}
	v1 := &Root{mode: Hybrid, unified: r.unified}
	if v1.HasIOLatency("/kubepods") {
		t.Error("io.latency without the controller io of v2")
	}
}
