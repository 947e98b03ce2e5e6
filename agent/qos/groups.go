package qos

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/metrics"
)

// Config of Groups.
type Config struct {
	Tree
	// CPUShares and MemoryBytes are what all pods together get.
	CPUShares   uint64
	MemoryBytes int64
	// Tasks is how many processes and threads the machine can have, Reserved what
	// the system keeps of it and of other resources, PodPids the limit of each pod.
	Tasks    int64
	Reserved corev1.ResourceList
	PodPids  *int64
	// Reserve keeps what pods ask for of memory from being reclaimed.
	Reserve bool
	// IOLatency are targets of each class, Disks those that they are for, as MAJOR:MINOR.
	IOLatency map[corev1.PodQOSClass]time.Duration
	Disks     []string
	Log       *slog.Logger
}

// Groups are the control groups of pods.
type Groups struct {
	Tree
	// Operations takes how long changes of groups took; nil: nobody asks.
	Operations *metrics.Durations

	cgroups  *cgroup.Root
	pids     pidLimits
	reserved reservations
	latency  latencies
}

// Limits are what a pod may use; zero values limit nothing, and a negative quota lifts one.
type Limits struct {
	CPUShares           int64
	CPUQuota, CPUPeriod int64 // microseconds
	MemoryBytes         int64
	// MemoryMin and MemoryLow are kept from being reclaimed, in bytes.
	MemoryMin, MemoryLow int64
}

// leastShares are those of all pods that ask for nothing: the kernel's least.
const leastShares = 2

// leastIOWeight is that class's share of a busy disk's time, beside 100 of pods that ask for
// something, where the kernel shares it out.
const leastIOWeight = 10

// Open makes the groups that pods lie in.
func Open(cfg Config) (*Groups, error) {
	cgroups, err := cgroup.Open(cfg.Driver)
	if err != nil {
		return nil, err
	}
	g := &Groups{Tree: cfg.Tree, cgroups: cgroups}
	if !cgroups.Controls("pids") {
		cfg.Log.Warn("pods are not limited in processes: the host has no pids controller of control groups")
	} else if g.pids, err = newPIDLimits(cfg.Tasks, cfg.PodPids, cfg.Reserved); err != nil {
		return nil, err
	}
	all := cgroup.Resources{CPUShares: &cfg.CPUShares, MemoryLimit: &cfg.MemoryBytes, PidsLimit: g.pids.all}
	if err := cgroups.Ensure(g.Kubepods(), all); err != nil {
		return nil, fmt.Errorf("cgroup of all pods: %w", err)
	}
	least := cgroup.Resources{CPUShares: ptr.To[uint64](leastShares), IOWeight: ptr.To[uint64](leastIOWeight)}
	err = errors.Join(
		cgroups.Ensure(g.Class(corev1.PodQOSBurstable), cgroup.Resources{}),
		cgroups.Ensure(g.Class(corev1.PodQOSBestEffort), least))
	if err != nil {
		return nil, err
	}
	g.reserved = reservations{cgroups: cgroups, tree: g.Tree, on: cfg.Reserve}
	g.latency = latencies{cgroups: cgroups, tree: g.Tree, targets: cfg.IOLatency, disks: cfg.Disks}
	return g, errors.Join(g.reserved.adopt(), g.latency.adopt(cfg.Log))
}

// Ensure makes a pod's group with its limits.
func (g *Groups) Ensure(path string, l Limits) error {
	defer g.took("create", time.Now())
	return errors.Join(g.cgroups.Ensure(path, g.resources(l)),
		g.reserved.put(path, protected{l.MemoryMin, l.MemoryLow}), g.latency.ensured(path))
}

// Set changes the limits of a group.
func (g *Groups) Set(path string, l Limits) error {
	defer g.took("update", time.Now())
	return errors.Join(g.cgroups.Set(path, g.resources(l)), g.reserved.put(path, protected{l.MemoryMin, l.MemoryLow}))
}

// Delete removes a group, whose containers have ended. What is in it nevertheless ends: an OCI
// runtime whose monitor was killed waits for ever in the group of what it was to make, and the
// pod would end as late.
func (g *Groups) Delete(path string) error {
	defer g.took("destroy", time.Now())
	err := g.cgroups.Delete(path)
	if err != nil && g.isPod(path) {
		if err = g.cgroups.Kill(path); err == nil {
			err = g.cgroups.Delete(path)
		}
	}
	return errors.Join(err, g.reserved.put(path, protected{}))
}

// isPod tells whether a group is that of a pod: no other's processes are ours to end.
func (g *Groups) isPod(path string) bool {
	classes := []string{g.Kubepods(), g.Class(corev1.PodQOSBurstable), g.Class(corev1.PodQOSBestEffort)}
	return slices.Contains(classes, filepath.Dir(path)) && !slices.Contains(classes, path)
}

// Use is what all pods use together.
func (g *Groups) Use() (cgroup.Stats, error) { return g.cgroups.Stat(g.Kubepods()) }

// Memory is what is left of the memory that pods may take together, and how much that
// is in all, in bytes; zeros where they are not limited, or nothing tells.
func (g *Groups) Memory() (available, limit int64) {
	s, err := g.cgroups.Stat(g.Kubepods())
	if err != nil || s.MemoryLimit == 0 {
		return 0, 0
	}
	return int64(s.Available()), int64(s.MemoryLimit)
}

func (g *Groups) took(operation string, begin time.Time) { g.Operations.Since(begin, operation) }

func (g *Groups) resources(l Limits) cgroup.Resources {
	shares := uint64(l.CPUShares)
	r := cgroup.Resources{CPUShares: &shares, PidsLimit: g.pids.each}
	if l.CPUQuota != 0 {
		period := uint64(l.CPUPeriod)
		r.CPUQuota, r.CPUPeriod = &l.CPUQuota, &period
	}
	if l.MemoryBytes > 0 {
		r.MemoryLimit = &l.MemoryBytes
	}
	if g.reserved.on {
		r.MemoryMin, r.MemoryLow = &l.MemoryMin, &l.MemoryLow
	}
	return r
}

// Unified are the v2 control files of every container: for lack of memory the
// kernel ends it as a whole (unless single processes are to be ended), and it
// gets no swap. It is empty where the host has no cgroup v2.
func (t Tree) Unified(singleProcessOOMKill bool) map[string]string {
	cgroups, err := cgroup.Open("") // an outside runtime's driver does not matter
	if err != nil || cgroups.Mode() != cgroup.V2 {
		return nil
	}
	out := map[string]string{}
	if !singleProcessOOMKill {
		out["memory.oom.group"] = "1"
	}
	if cgroups.HasFile(t.Kubepods(), "memory.swap.max") {
		out["memory.swap.max"] = "0"
	}
	return out
}

// RemoveEmpty removes the groups of all pods where nothing runs in them.
func (t Tree) RemoveEmpty() error {
	cgroups, err := cgroup.Open(t.Driver)
	if err != nil {
		return nil // then they are not the agent's
	}
	if pids, err := cgroups.Pids(t.Kubepods()); err != nil || len(pids) > 0 {
		return err
	}
	return cgroups.Delete(t.Kubepods())
}

// RemoveTop removes the parent of kubepods when the configuration names one and
// nobody else uses it.
func (t Tree) RemoveTop() error {
	if t.Top() == "/" {
		return nil
	}
	cgroups, err := cgroup.Open(t.Driver)
	if err != nil {
		return err
	}
	if len(cgroups.List(t.Top())) > 0 {
		return nil
	}
	return cgroups.Delete(t.Top())
}
