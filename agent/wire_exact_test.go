package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/device/cpu"
	"github.com/shoal-project/shoal/agent/device/memory"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/metrics"
)

// exactOf makes what gives containers CPUs and memory of this machine.
func exactOf(t *testing.T, change func(*config.Config)) (*exact, *config.Config, error) {
	t.Helper()
	cfg := config.Default()
	cfg.DataDir = t.TempDir()
	change(&cfg)
	log := slog.New(slog.DiscardHandler)
	kept, err := openStores(&cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kept.close)
	counts := metrics.NewAgent()
	devices, err := newDevices(&cfg, kept, "now", counts, log)
	if err != nil {
		t.Fatal(err)
	}
	e, err := newExact(&cfg, host.Facts{MemoryBytes: 1 << 30}, kept, devices, containers{}, counts, log)
	return e, &cfg, err
}

// What the configuration says wrongly of the machine is told by the field's name.
func TestExactConfiguration(t *testing.T) {
	for _, c := range []struct {
		field  string
		change func(*config.Config)
	}{
		{"reservedSystemCPUs", func(c *config.Config) { c.ReservedSystemCPUs = "0,4095" }},
		{"cpuManagerPolicyOptions", func(c *config.Config) { c.CPUManagerPolicyOptions = map[string]string{"full": "true"} }},
		{"systemReserved", func(c *config.Config) {
			c.ReservedSystemCPUs, c.SystemReserved = "", map[string]string{"cpu": "4096"}
		}},
		{"topologyManagerPolicyOptions", func(c *config.Config) {
			c.TopologyManagerPolicyOptions = map[string]string{"prefer-closest-numa-nodes": "maybe"}
		}},
		{"reservedMemory", func(c *config.Config) {
			c.MemoryManagerPolicy = config.MemoryManagerOn
			c.ReservedMemory = []config.MemoryReservation{{NumaNode: 63}}
		}},
		{"reservedMemory", func(c *config.Config) { // not what the defaults of evictionHard keep
			c.MemoryManagerPolicy = config.MemoryManagerOn
			c.ReservedMemory = []config.MemoryReservation{{NumaNode: 0, Limits: map[string]string{"memory": "1Mi"}}}
		}},
	} {
		_, _, err := exactOf(t, func(cfg *config.Config) {
			cfg.CPUManagerPolicy, cfg.ReservedSystemCPUs = config.CPUManagerStatic, "0"
			c.change(cfg)
		})
		if err == nil || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: %v", c.field, err)
		}
	}
}

func TestExactReservations(t *testing.T) {
	e, cfg, err := exactOf(t, func(c *config.Config) {
		c.CPUManagerPolicy, c.SystemReserved = config.CPUManagerStatic, map[string]string{"cpu": "100m"}
		c.MemoryManagerPolicy = config.MemoryManagerOn
	})
	if err != nil {
		t.Fatal(err)
	}
	if e.cpus.Reserved.Size() != 1 { // a part of a CPU is a whole one
		t.Errorf("reserved: %s", e.cpus.Reserved)
	}
	if q := reserved(cfg)[corev1.ResourceCPU]; q.String() != "100m" {
		t.Errorf("the node keeps %s", q.String())
	}
	cfg.ReservedSystemCPUs = "0-2"
	if q := reserved(cfg)[corev1.ResourceCPU]; q.Cmp(resource.MustParse("3")) != 0 {
		t.Errorf("the node keeps %s", q.String())
	}
	if e.forget != nil || e.pool == nil || len(e.all.Providers) != 3 {
		t.Errorf("%+v", e)
	}
}

// With the policies none there is nothing, unless an earlier agent gave CPUs away.
func TestNothingExact(t *testing.T) {
	e, _, err := exactOf(t, func(*config.Config) {})
	if err != nil || e.pool != nil || e.cpus != nil || e.memory != nil {
		t.Errorf("%+v, %v", e, err)
	}
	var dir string
	e, _, err = exactOf(t, func(c *config.Config) {
		dir = filepath.Join(c.CheckpointDir(), cpuRecords)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	})
	if err != nil || e.pool == nil || e.cpus != nil || e.pool.Of("any", "c") != e.all.Machine.All().String() {
		t.Fatalf("%+v, %v", e, err)
	}
	e.forget()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("records are left: %v", err)
	}
}

// Of a Guaranteed pod only what a manager has given cannot change while it runs; upstream's words.
func TestFixed(t *testing.T) {
	pod := func(cpu, memory string) *corev1.Pod {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse(memory)}
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "c", Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}}}}
	}
	has := pod("1", "1Gi")
	burstable := pod("2", "2Gi")
	burstable.Spec.Containers[0].Resources.Limits = nil
	cpus := &exact{cpus: &cpu.Manager{}}
	memories := &exact{memory: &memory.Manager{}}
	for _, c := range []struct {
		name string
		e    *exact
		p    *corev1.Pod
		want string
	}{
		{"cpu", cpus, pod("2", "1Gi"),
			`Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`},
		{"only-memory", cpus, pod("1", "2Gi"), ""},
		{"memory", memories, pod("1", "2Gi"),
			`Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"`},
		{"only-cpu", memories, pod("2", "1Gi"), ""},
		{"burstable", cpus, burstable, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.e.fixed(c.p, has); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
