package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	criapi "k8s.io/cri-api/pkg/apis"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/checkpoint"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/container"
	"github.com/shoal-project/shoal/agent/evict"
	"github.com/shoal-project/shoal/agent/fence"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/network"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/oci"
	"github.com/shoal-project/shoal/agent/outside"
	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/qos"
	"github.com/shoal-project/shoal/agent/runtime"
	"github.com/shoal-project/shoal/agent/server"
	"github.com/shoal-project/shoal/agent/tracing"
	"github.com/shoal-project/shoal/cni/cidr"
)

// containers is what runs containers, and where.
type containers struct {
	criapi.RuntimeService
	images criapi.ImageManagerService
	// brief is the runtime that keeps little of what probes and hooks say.
	brief   criapi.RuntimeService
	version string // as in shoal://0.1
	tree    qos.Tree
	// sessions enter containers for the kubelet's API.
	sessions server.Sessions
	// groups makes the pods' control groups; nil where their runtime does.
	groups *qos.Groups
	// builtin is the agent's own runtime; nil with an outside one.
	builtin *runtime.Runtime
	// outdated: the runtime is one that upstream's next release does without.
	outdated bool
	// pulls is how many images are pulled at one time; 0: the runtime sees to it.
	pulls int
	// told tells a runtime with a network of its own the range of the pods.
	told func(ctx context.Context, podCIDR string)
}

func tree(cfg *config.Config) qos.Tree {
	return qos.Tree{Driver: cgroup.Driver(cfg.CgroupDriver), Root: cfg.CgroupRoot}
}

func runtimeConfig(
	cfg *config.Config, n *network.Manager, limits container.Quotas, seal *checkpoint.Keys, guard *fence.Guard,
	log *slog.Logger,
) runtime.Config {
	return runtime.Config{
		DataDir:    cfg.DataDir,
		RunDir:     cfg.RunDir,
		ImportDir:  cfg.ImagesDir,
		CertsDir:   cfg.RegistryConfigDir,
		CgroupRoot: tree(cfg).Kubepods(),
		Driver:     cgroup.Driver(cfg.CgroupDriver),
		Runtimes:   handlers(cfg),
		Network:    n,
		Pause:      pauseProgram(log),
		Hybrid:     beside("shoal-hybrid"),
		Quotas:     limits,
		Seal:       seal,
		MayRun:     mayRun(guard),
		KeepFree:   evict.Keep(cfg.EvictionHard, "imagefs.available"),
		KeepInodes: evict.Keep(cfg.EvictionHard, "imagefs.inodesFree"),
		Pulls:      cfg.ParallelImagePulls(),
		Log:        log,

		KeepCheckpoints: evict.Keep(cfg.EvictionHard, "nodefs.available"),
	}
}

// hugePages is how many bytes the node has in huge pages.
func hugePages(facts host.Facts) (sum int64) {
	for _, n := range facts.HugePages {
		sum += n
	}
	return sum
}

// beside is the path of a program that lies beside this one, whether it is there or not; ""
// if that is not known.
func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	return filepath.Join(filepath.Dir(self), name)
}

// pauseProgram is shoal-pause, which lies beside this program.
func pauseProgram(log *slog.Logger) string {
	path := beside("shoal-pause")
	if _, err := os.Stat(path); err != nil {
		log.Warn("pods with shareProcessNamespace or hostUsers: false do not start: install shoal-pause beside shoal-agent",
			"err", err)
	}
	return path
}

// handlers are the OCI runtimes that the configuration names.
func handlers(cfg *config.Config) map[string]oci.Runtime {
	out := map[string]oci.Runtime{}
	for name, command := range cfg.RuntimeHandlers {
		out[name] = oci.Parse(command)
	}
	return out
}

// openContainers opens the runtime that the configuration chooses.
func openContainers(
	ctx context.Context, cfg *config.Config, facts host.Facts, n *network.Manager, limits container.Quotas,
	memory *node.Memory, kept stores, spans *tracing.Tracer, guard *fence.Guard, log *slog.Logger,
) (containers, error) {
	if cfg.ContainerRuntimeEndpoint != "" {
		return connectRuntime(ctx, cfg, facts, memory, spans, log)
	}
	return openRuntime(ctx, cfg, facts, n, limits, kept.seal, guard, log)
}

// latencyTargets are ioLatencyTargets and the disks that they are for: those with volumes,
// images and logs.
func latencyTargets(cfg *config.Config) (map[corev1.PodQOSClass]time.Duration, []string, error) {
	if len(cfg.IOLatencyTargets) == 0 {
		return nil, nil, nil
	}
	targets := map[corev1.PodQOSClass]time.Duration{}
	for class, d := range cfg.IOLatencyTargets {
		targets[class] = d.Duration
	}
	disks, err := host.Disks([]string{cfg.DataDir, cfg.RootDir, cfg.PodLogsDir})
	if err != nil {
		return nil, nil, fmt.Errorf("ioLatencyTargets: %w", err)
	}
	return targets, disks, nil
}

// openGroups makes the groups that pods lie in, whoever makes those of containers in them.
func openGroups(cfg *config.Config, facts host.Facts, tree qos.Tree, log *slog.Logger) (*qos.Groups, error) {
	tasks, err := host.ReadTasks()
	if err != nil {
		return nil, fmt.Errorf("number of processes: %w", err)
	}
	_, allocatable := node.Capacity(facts, cfg.MaxPods, reserved(cfg))
	targets, disks, err := latencyTargets(cfg)
	if err != nil {
		return nil, err
	}
	return qos.Open(qos.Config{
		Tree:        tree,
		CPUShares:   uint64(launch.Shares(allocatable.Cpu().MilliValue())),
		MemoryBytes: allocatable.Memory().Value(),
		Tasks:       tasks.Limit(),
		Reserved:    reserved(cfg),
		PodPids:     cfg.PodPidsLimit,
		Reserve:     cfg.MemoryReservationPolicy == config.ReserveTiered,
		IOLatency:   targets,
		Disks:       disks,
		Log:         log,
	})
}

// openRuntime opens the agent's own runtime, and frees the addresses of sandboxes
// that a crash or a reboot took.
func openRuntime(
	ctx context.Context, cfg *config.Config, facts host.Facts, n *network.Manager, limits container.Quotas,
	seal *checkpoint.Keys, guard *fence.Guard, log *slog.Logger,
) (containers, error) {
	if !host.Overcommits() {
		log.Info("programs that reserve much more memory than there is are refused it, unlike with the kubelet",
			"because", "vm.overcommit_memory is not 1", "see", "/usr/lib/sysctl.d/50-shoal.conf")
	}
	groups, err := openGroups(cfg, facts, tree(cfg), log)
	if err != nil {
		return containers{}, err
	}
	rc := runtimeConfig(cfg, n, limits, seal, guard, log)
	rc.HugePages = hugePages(facts)
	r, err := runtime.Open(ctx, rc)
	if err != nil {
		return containers{}, err
	}
	if err := releaseNetwork(ctx, r, n); err != nil {
		log.Warn("addresses of lost sandboxes are not freed, or host ports not restored", "err", err)
	}
	version, err := versionOf(ctx, r)
	return containers{
		RuntimeService: r,
		images:         r,
		brief:          runtime.Brief{Runtime: r},
		version:        version,
		tree:           groups.Tree,
		sessions:       server.Sessions{URLs: r, Streams: streams{r}},
		groups:         groups,
		builtin:        r,
		told:           func(context.Context, string) {},
	}, err
}

// releaseNetwork tells the network which sandboxes there are: what others had is free,
// also of those that were held when the agent before ended.
func releaseNetwork(ctx context.Context, r *runtime.Runtime, n *network.Manager) error {
	ids, ready := r.Connected()
	return errors.Join(n.Release(ctx, ids), n.Know(ready))
}

// connectRuntime uses a runtime behind a CRI socket.
func connectRuntime(
	ctx context.Context, cfg *config.Config, facts host.Facts, memory *node.Memory, spans *tracing.Tracer,
	log *slog.Logger,
) (containers, error) {
	if cfg.MemoryReservationPolicy == config.ReserveTiered {
		return containers{}, errors.New("memoryReservationPolicy: TieredReservation is for the agent's own runtime: use None")
	}
	r, err := outside.Connect(ctx, cfg.ContainerRuntimeEndpoint, cfg.ImageServiceEndpoint,
		cfg.RuntimeRequestTimeout.Duration, spans.Provider(), log)
	if err != nil {
		return containers{}, err
	}
	if n := memory.Node(); n != nil && len(n.Spec.PodCIDRs) > 0 {
		r.TellPodCIDR(ctx, cidr.Parse(n.Spec.PodCIDRs...).Text())
	}
	driver, tells, err := r.Driver(ctx, cgroup.Driver(cfg.CgroupDriver))
	if err != nil {
		return containers{}, err
	}
	if !tells {
		log.Warn("the container runtime is old: it does not tell who makes control groups; cgroupDriver says it",
			"cgroupDriver", driver)
	}
	of := qos.Tree{Driver: driver, Root: cfg.CgroupRoot}
	groups, err := foreignGroups(cfg, facts, of, log)
	if err != nil {
		return containers{}, err
	}
	version, err := versionOf(ctx, r)
	return containers{
		RuntimeService: r,
		images:         r.Images,
		brief:          r,
		version:        version,
		tree:           of,
		groups:         groups,
		sessions:       server.Sessions{URLs: r},
		outdated:       !tells,
		pulls:          cfg.ParallelImagePulls(),
		told:           r.TellPodCIDR,
	}, err
}

// foreignGroups makes the groups that an outside runtime's containers lie in, unless systemd
// makes them where control groups are v1, which only the runtime asks it for.
func foreignGroups(cfg *config.Config, facts host.Facts, tree qos.Tree, log *slog.Logger) (*qos.Groups, error) {
	if _, err := cgroup.Open(tree.Driver); err != nil {
		log.Warn("control groups of pods are without limits: the container runtime makes them", "why", err)
		return nil, nil
	}
	return openGroups(cfg, facts, tree, log)
}

func versionOf(ctx context.Context, r criapi.RuntimeService) (string, error) {
	v, err := r.Version(ctx, "v1")
	if err != nil {
		return "", fmt.Errorf("container runtime: %w", err)
	}
	return v.RuntimeName + "://" + v.RuntimeVersion, nil
}
