package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/device/cpu"
	"github.com/shoal-project/shoal/agent/device/ledger"
	"github.com/shoal-project/shoal/agent/device/memory"
	"github.com/shoal-project/shoal/agent/device/plugin"
	"github.com/shoal-project/shoal/agent/device/topology"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/pod/launch"
	podrecord "github.com/shoal-project/shoal/agent/record"
)

// exact are the parts of the machine that containers have for themselves, and what aligns
// them; its fields are nil where the configuration does not ask for them.
type exact struct {
	all     *topology.Manager
	plugged *plugin.Manager
	cpus    *cpu.Manager
	memory  *memory.Manager
	// pool keeps containers on their CPUs. It is there, without cpus, when an earlier agent
	// gave CPUs away: forget removes what that one kept once all run on all of them again.
	pool   *cpu.Pool
	forget func()
	// running are the pods that there are, throttle limits one's CPU time again.
	running  func() []*corev1.Pod
	throttle func(ctx context.Context, pod types.UID) error
	log      *slog.Logger
	// stores are to be closed.
	stores []interface{ Close() }
}

func (e *exact) close() {
	for _, s := range e.stores {
		s.Close()
	}
}

// newExact has CPUs, memory and devices of plugins given to containers.
func newExact(cfg *config.Config, facts host.Facts, kept stores, devices *plugin.Manager, runtime containers,
	counts *metrics.Agent, log *slog.Logger) (*exact, error) {
	machine, err := topology.Read(os.DirFS("/sys/devices/system"), facts.MemoryBytes)
	if err != nil && exactly(cfg) {
		return nil, fmt.Errorf("how the processors of this machine lie to each other: %w", err)
	} else if err != nil {
		machine = &topology.Machine{} // nobody asks
	}
	e := &exact{plugged: devices, log: log}
	if err := e.addCPUs(cfg, kept, machine, runtime, counts, log); err != nil {
		return nil, err
	}
	if err := e.addMemory(cfg, facts, kept, machine, counts, log); err != nil {
		return nil, err
	}
	all := topology.Manager{
		Machine:  machine,
		Policy:   topology.Policy(cfg.TopologyManagerPolicy),
		Scope:    cfg.TopologyManagerScope,
		Requests: counts.Alignments,
		Errors:   counts.AlignmentErrors,
	}
	most, err := all.Configure(cfg.TopologyManagerPolicyOptions)
	if err != nil {
		return nil, fmt.Errorf("topologyManagerPolicyOptions: %w", err)
	}
	devices.Nodes = machine.NodeMask()
	if e.cpus != nil {
		all.Providers = append(all.Providers, e.cpus)
	}
	if e.memory != nil {
		all.Providers = append(all.Providers, e.memory)
	}
	all.Providers = append(all.Providers, devices) // last: a plugin is asked when all else is sure
	e.all, err = topology.New(all, most)
	return e, err
}

// exactly tells whether the configuration has something given that depends on the machine.
func exactly(cfg *config.Config) bool {
	return cfg.CPUManagerPolicy != config.ManagerNone || cfg.MemoryManagerPolicy != config.MemoryManagerNone ||
		cfg.TopologyManagerPolicy != config.ManagerNone
}

// cpuRecords and memoryRecords are where the records of both lie.
const (
	cpuRecords    = "cpus"
	memoryRecords = "memory"
)

func (e *exact) addCPUs(cfg *config.Config, kept stores, machine *topology.Machine, runtime containers,
	counts *metrics.Agent, log *slog.Logger) error {
	dir := filepath.Join(cfg.CheckpointDir(), cpuRecords)
	if cfg.CPUManagerPolicy != config.CPUManagerStatic {
		all := machine.All().String()
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) || all == "" {
			return nil
		}
		e.pool = newPool(runtime, func(types.UID, string) string { return all }, log)
		e.forget = func() {
			if err := os.RemoveAll(dir); err != nil {
				log.Warn("records of CPUs that containers had for themselves are left", "err", err)
			}
		}
		return nil
	}
	options, err := cpu.ParseOptions(cfg.CPUManagerPolicyOptions)
	if err == nil {
		err = options.Check(machine, topology.Policy(cfg.TopologyManagerPolicy))
	}
	if err != nil {
		return fmt.Errorf("cpuManagerPolicyOptions: %w", err)
	}
	keep, err := reservedCPUs(cfg, machine)
	if err != nil {
		return err
	}
	records, err := openStore[cpu.Pod](cfg, cpuRecords, kept.seal, log)
	if err != nil {
		return err
	}
	e.stores = append(e.stores, records)
	e.cpus = &cpu.Manager{
		Machine:  machine,
		Options:  options,
		Reserved: keep,
		Ledger:   &ledger.Ledger[cpu.Pod, *cpu.Pod]{What: "CPUs", Records: records, Log: log},
		QoS:      launch.QoS,
		Requests: counts.CPUPins,
		Errors:   counts.CPUPinErrors,
		Log:      log,
	}
	e.pool = newPool(runtime, func(uid types.UID, container string) string {
		on, _ := e.cpus.Of(uid, container)
		return on.String()
	}, log)
	e.cpus.Changed = e.pool.Apply
	if err := e.cpus.Load(); err != nil {
		return err
	}
	log.Info("containers may have CPUs for themselves", "reserved", keep.String(),
		"others", e.cpus.Allocatable().String())
	return nil
}

// reservedCPUs are those of the system: the ones that the configuration names, or as many as
// it reserves.
func reservedCPUs(cfg *config.Config, machine *topology.Machine) (cpuset.CPUSet, error) {
	named, err := cpuset.Parse(cfg.ReservedSystemCPUs)
	if err != nil {
		return named, fmt.Errorf("reservedSystemCPUs: %w", err)
	}
	if missing := named.Difference(machine.All()); !missing.IsEmpty() {
		return named, fmt.Errorf("reservedSystemCPUs: the machine has no CPUs %s", missing)
	}
	if !named.IsEmpty() {
		return named, nil
	}
	list := reserved(cfg)
	out, err := cpu.Reserve(machine, int(list.Cpu().Value())) // rounded up
	if err != nil {
		return out, fmt.Errorf("cpu of systemReserved and kubeReserved: %w", err)
	}
	return out, nil
}

func (e *exact) addMemory(cfg *config.Config, facts host.Facts, kept stores, machine *topology.Machine,
	counts *metrics.Agent, log *slog.Logger) error {
	dir := filepath.Join(cfg.CheckpointDir(), memoryRecords)
	if cfg.MemoryManagerPolicy != config.MemoryManagerOn {
		return os.RemoveAll(dir) // what runs stays where it is
	}
	keep, err := reservedMemory(cfg, facts, machine)
	if err != nil {
		return err
	}
	records, err := openStore[memory.Pod](cfg, memoryRecords, kept.seal, log)
	if err != nil {
		return err
	}
	e.stores = append(e.stores, records)
	e.memory = &memory.Manager{
		Allocatable: memory.Allocatable(machine, keep),
		Ledger:      &ledger.Ledger[memory.Pod, *memory.Pod]{What: "memory", Records: records, Log: log},
		QoS:         launch.QoS,
		Requests:    counts.MemoryPins,
		Errors:      counts.MemoryPinErrors,
	}
	return e.memory.Load()
}

// reservedMemory is what is reserved of each NUMA node. What the configuration names must be
// what is reserved of the machine, as upstream has it.
func reservedMemory(cfg *config.Config, facts host.Facts, machine *topology.Machine) (memory.Amounts, error) {
	whole := withheld(cfg, facts)
	if len(cfg.ReservedMemory) == 0 {
		return memory.Spread(machine, whole), nil
	}
	out, sums := memory.Amounts{}, corev1.ResourceList{}
	for _, r := range cfg.ReservedMemory {
		if _, there := machine.Nodes[r.NumaNode]; !there {
			return nil, fmt.Errorf("reservedMemory: the machine has no NUMA node %d", r.NumaNode)
		}
		for kind, v := range r.Limits {
			q, err := resource.ParseQuantity(v)
			if err != nil {
				return nil, fmt.Errorf("reservedMemory: %s: %w", kind, err)
			}
			out.Add(r.NumaNode, corev1.ResourceName(kind), q.Value())
			sum := sums[corev1.ResourceName(kind)]
			sum.Add(q)
			sums[corev1.ResourceName(kind)] = sum
		}
	}
	kinds := sets.KeySet(whole).Union(sets.KeySet(sums))
	for _, kind := range sets.List(kinds) {
		if q, sum := whole[kind], sums[kind]; memory.Kind(kind) && sum.Cmp(q) != 0 {
			return nil, fmt.Errorf("reservedMemory: %s of all NUMA nodes is %s, and must be what systemReserved, kubeReserved "+
				"and evictionHard keep, %s", kind, sum.String(), q.String())
		}
	}
	return out, nil
}

// newPool keeps containers of the runtime on their CPUs.
func newPool(runtime containers, of func(types.UID, string) string, log *slog.Logger) *cpu.Pool {
	return &cpu.Pool{
		Of: of,
		List: func(ctx context.Context) (out []cpu.Container, err error) {
			list, err := runtime.ListContainers(ctx, nil)
			for _, c := range list {
				uid, container := c.Labels[launch.LabelPodUID], c.Labels[launch.LabelContainerName]
				running := c.State == criv1.ContainerState_CONTAINER_RUNNING
				if uid != "" && (running || c.State == criv1.ContainerState_CONTAINER_CREATED) {
					out = append(out, cpu.Container{ID: c.Id, Pod: types.UID(uid), Name: container})
				}
			}
			return out, err
		},
		Set: func(ctx context.Context, id, cpus string) error {
			return runtime.UpdateContainerResources(ctx, id, &criv1.ContainerResources{
				Linux: &criv1.LinuxContainerResources{CpusetCpus: cpus}})
		},
		Log: log,
	}
}

// follow has what is given freed with the pods.
func (e *exact) follow(pods *pod.Manager) {
	e.running, e.throttle = pods.Pods, pods.Throttle
	if e.cpus != nil {
		e.cpus.Ledger.Ending = pods.Ending
	}
	if e.memory != nil {
		e.memory.Ledger.Ending = pods.Ending
	}
}

// refused counts for a pod that is refused for want of room.
func (e *exact) refused(p *corev1.Pod) {
	if e.cpus != nil {
		e.cpus.Refused(p)
	}
	if e.memory != nil {
		e.memory.Refused(p)
	}
}

// pods are those that have something.
func (e *exact) pods() []*corev1.Pod {
	out := e.plugged.Pods()
	if e.cpus != nil {
		out = append(out, e.cpus.Ledger.Pods()...)
	}
	if e.memory != nil {
		out = append(out, e.memory.Ledger.Pods()...)
	}
	return out
}

// unthrottled tells whether a pod has CPUs for itself.
func (e *exact) unthrottled(p *corev1.Pod) bool { return e.cpus != nil && e.cpus.Has(p.UID) }

// pinned is what a container is kept on.
func (e *exact) pinned(p *corev1.Pod, c *corev1.Container) (out launch.Pinned) {
	if e.cpus != nil {
		on, exclusive := e.cpus.Of(p.UID, c.Name)
		out.CPUs, out.Exclusive = on.String(), exclusive
	}
	if e.memory != nil {
		out.Mems = e.memory.Nodes(p.UID, c.Name).String()
	}
	return out
}

// created has a container that was created stay on its CPUs.
func (e *exact) created(ctx context.Context, p *corev1.Pod, c *corev1.Container, id string, on launch.Pinned) {
	if e.cpus != nil {
		e.pool.Created(ctx, cpu.Container{ID: id, Pod: p.UID, Name: c.Name}, on.CPUs)
	}
}

// fixed tells why a pod's resources cannot change while it runs, in upstream's words.
func (e *exact) fixed(p, allocated *corev1.Pod) string {
	if launch.QoS(p) != corev1.PodQOSGuaranteed {
		return ""
	}
	const infeasible = "Resize is infeasible for Guaranteed Pods alongside %s Manager policy %q"
	switch {
	case e.cpus != nil && asksForOther(corev1.ResourceCPU, p, allocated):
		return fmt.Sprintf(infeasible, "CPU", config.CPUManagerStatic)
	case e.memory != nil && asksForOther(corev1.ResourceMemory, p, allocated):
		return fmt.Sprintf(infeasible, "Memory", config.MemoryManagerOn)
	}
	return ""
}

// asksForOther tells whether a container of p asks for more or less of a resource than it has.
func asksForOther(name corev1.ResourceName, p, allocated *corev1.Pod) (other bool) {
	has := map[string]corev1.ResourceList{}
	podrecord.EachContainer(allocated, func(c *corev1.Container) { has[c.Name] = c.Resources.Requests })
	podrecord.EachContainer(p, func(c *corev1.Container) {
		was := has[c.Name][name]
		other = other || !was.Equal(c.Resources.Requests[name])
	})
	return other
}

// run keeps containers on their CPUs until ctx ends.
func (e *exact) run(ctx context.Context) error {
	if !e.pool.Settle(ctx) {
		return nil
	}
	limited := e.limit(ctx)
	if e.forget == nil {
		return e.pool.Run(ctx)
	}
	if limited {
		e.forget()
	}
	return nil
}

// limit has pods keep to their limits of CPU time that may have had CPUs of their own, and have
// none now: the policy is another one, or their CPUs are reserved or gone. It tells whether all do.
func (e *exact) limit(ctx context.Context) bool {
	all := true
	for _, p := range e.running() {
		if launch.QoS(p) != corev1.PodQOSGuaranteed || e.unthrottled(p) {
			continue
		}
		if err := e.throttle(ctx, p.UID); err != nil && ctx.Err() == nil {
			e.log.Warn("a pod that has no CPUs of its own any more may use more CPU time than its limit", "err", err)
			all = false
		}
	}
	return all && ctx.Err() == nil
}

// Reasons of events of pods that wait: for the devices of a plugin, and for what pods have
// that end.
const (
	noDevicesYet   = "DevicesNotReady"
	noResourcesYet = "ResourcesNotReady"
)

// ensureExact has the pod given what it asks for of CPUs, memory and devices. One that cannot
// have it is rejected as by the kubelet, unless that may change soon; a pod of a manifest waits
// for ever.
func ensureExact(e *exact) step {
	return func(ctx context.Context, s *pod.Setting) error {
		err := e.all.Ensure(ctx, s.Pod)
		var (
			devices  *plugin.Waiting
			others   *ledger.Waiting
			rejected *topology.Rejection
		)
		switch {
		case err == nil:
			return nil
		case errors.As(err, &devices):
			return &pod.Fault{Reason: noDevicesYet, Message: "Waiting for " + devices.For + " until " +
				devices.Until.Format(time.RFC3339) + ": " + err.Error()}
		case errors.As(err, &others):
			return &pod.Fault{Reason: noResourcesYet, Message: "Waiting for pods that end: " + err.Error()}
		case errors.As(err, &rejected):
			return &pod.Fault{Reason: rejected.Reason, Message: rejected.Message, Rejects: !s.Manifest}
		}
		return &pod.Fault{
			Reason:  "UnexpectedAdmissionError",
			Message: "Allocate failed due to " + strings.TrimSuffix(err.Error(), ".") + ", which is unexpected",
			Rejects: !s.Manifest,
		}
	}
}

// releaseExact frees all of it; pods that wait for some are told.
func releaseExact(e *exact, pods *pod.Manager) step {
	return func(ctx context.Context, s *pod.Setting) error {
		errs := []error{e.plugged.Release(s.Pod.UID)}
		if e.memory != nil {
			_, err := e.memory.Ledger.Release(s.Pod.UID)
			errs = append(errs, err)
		}
		if e.cpus != nil {
			errs = append(errs, e.cpus.Release(ctx, s.Pod))
		}
		if e.memory != nil || e.cpus != nil {
			pods.RetrySetup(noResourcesYet)
		}
		return errors.Join(errs...)
	}
}

// podCPUs and the next are for the pod resources API.
func (e *exact) podCPUs(uid types.UID, container string) []int64 {
	if e.cpus == nil {
		return nil
	}
	on, exclusive := e.cpus.Of(uid, container)
	if !exclusive {
		return nil
	}
	return numbers(on)
}

func (e *exact) allocatableCPUs() []int64 {
	if e.cpus == nil {
		return nil
	}
	return numbers(e.cpus.Allocatable())
}

func numbers(s cpuset.CPUSet) []int64 {
	out := make([]int64, 0, s.Size())
	for _, n := range s.List() {
		out = append(out, int64(n))
	}
	return out
}

func (e *exact) podMemory(uid types.UID, container string) (out []*podresourcesv1.ContainerMemory) {
	if e.memory == nil {
		return nil
	}
	for _, b := range e.memory.Blocks(uid, container) {
		out = append(out, containerMemory(b.Kind, b.Size(), b.Nodes))
	}
	return out
}

func (e *exact) allocatableMemory() (out []*podresourcesv1.ContainerMemory) {
	if e.memory == nil {
		return nil
	}
	e.memory.Allocatable.Each(func(node int, kind corev1.ResourceName, bytes int64) {
		out = append(out, containerMemory(kind, bytes, topology.MaskOf(node)))
	})
	return out
}

func containerMemory(kind corev1.ResourceName, bytes int64, on topology.Mask) *podresourcesv1.ContainerMemory {
	t := &podresourcesv1.TopologyInfo{}
	for _, n := range on.Nodes() {
		t.Nodes = append(t.Nodes, &podresourcesv1.NUMANode{ID: int64(n)})
	}
	return &podresourcesv1.ContainerMemory{MemoryType: string(kind), Size: uint64(bytes), Topology: t}
}
