package cpu

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/shoal-project/shoal/agent/device/ledger"
	"github.com/shoal-project/shoal/agent/device/topology"
	"github.com/shoal-project/shoal/agent/metrics"
)

// Manager gives containers CPUs. Its methods may be called at the same time.
type Manager struct {
	Machine *topology.Machine
	Options Options
	// Reserved are the CPUs of the system.
	Reserved cpuset.CPUSet
	// Ledger has the records of pods.
	Ledger *ledger.Ledger[Pod, *Pod]
	// QoS is a pod's class.
	QoS func(*corev1.Pod) corev1.PodQOSClass
	// Changed is called when the shared pool did, before a container with CPUs of its own
	// starts; nil: nobody is told.
	Changed func(context.Context)
	// Requests and Errors count what containers ask for; nil: nobody does.
	Requests, Errors *metrics.Counts
	Log              *slog.Logger

	// choosing is held from the look at what is free until the choice is recorded.
	choosing sync.Mutex
}

// Reserve chooses n CPUs for the system, which are packed as those of a container are.
func Reserve(m *topology.Machine, n int) (cpuset.CPUSet, error) {
	return taker{machine: m}.take(m.All(), n)
}

// Load reads the records of an earlier agent, before the first pod is looked at. CPUs that
// are not there any more, or are reserved now, or that two pods have, are nobody's: their
// containers run in the shared pool until they start again.
func (m *Manager) Load() error {
	left := m.Allocatable()
	return m.Ledger.Load(func(p *Pod) error {
		if err := p.decode(); err != nil {
			return err
		}
		has := p.all()
		if missing := has.Difference(left); !missing.IsEmpty() {
			return fmt.Errorf("of the CPUs %s these are not to be had: %s", has, missing)
		}
		left = left.Difference(has)
		return nil
	})
}

// Exclusive is how many CPUs a container has for itself, 0 for none: those of pods of the
// class Guaranteed that ask for whole ones. Pods that ask for CPUs as a whole share them.
func (m *Manager) Exclusive(p *corev1.Pod, c *corev1.Container) int {
	if p.Spec.Resources != nil || m.QoS(p) != corev1.PodQOSGuaranteed {
		return 0
	}
	q, asked := c.Resources.Requests[corev1.ResourceCPU]
	if !asked {
		q = c.Resources.Limits[corev1.ResourceCPU]
	}
	if q.MilliValue()%1000 != 0 {
		return 0
	}
	return int(q.Value())
}

// Hints are those of a container.
func (m *Manager) Hints(p *corev1.Pod, c *corev1.Container) topology.Hints {
	if _, has := m.Ledger.Get(p.UID).of(c.Name); has {
		return nil
	}
	return m.hints(m.Exclusive(p, c), m.reusable(p, c))
}

// PodHints are those of all containers of a pod together, none if one has its CPUs already.
func (m *Manager) PodHints(p *corev1.Pod) topology.Hints {
	if m.Ledger.Get(p.UID) != nil {
		return nil
	}
	return m.hints(m.podExclusive(p), cpuset.New())
}

// podExclusive is how many CPUs a pod has at most at one time.
func (m *Manager) podExclusive(p *corev1.Pod) int {
	sidecars, most := 0, 0
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		n := m.Exclusive(p, c)
		most = max(most, sidecars+n)
		if restarts(c) {
			sidecars += n
		}
	}
	sum := sidecars
	for i := range p.Spec.Containers {
		sum += m.Exclusive(p, &p.Spec.Containers[i])
	}
	return max(most, sum)
}

func restarts(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func (m *Manager) hints(n int, reuse cpuset.CPUSet) topology.Hints {
	if n == 0 {
		return nil
	}
	m.Ledger.Sweep()
	free := m.usable(m.free().Union(reuse))
	if free.Size() < n && m.soon(free) >= n {
		return nil // it is worth waiting, as Allocate tells
	}
	var out []topology.Hint
	least := len(m.Machine.Nodes)
	for nodes := range m.Machine.NodeMask().Subsets() {
		on := m.Machine.On(nodes)
		if on.Size() >= n {
			least = min(least, nodes.Count())
		}
		if free.Intersection(on).Size() >= n && reuse.IsSubsetOf(on) {
			out = append(out, topology.Hint{Nodes: nodes})
		}
	}
	for i := range out {
		out[i].Preferred = out[i].Nodes.Count() == least
		if m.Options.AlignBySocket {
			perSocket := max(1, len(m.Machine.Nodes)/max(1, m.Machine.Sockets(m.Machine.NodeMask())))
			out[i].Preferred = m.Machine.Sockets(out[i].Nodes) == (least+perSocket-1)/perSocket
		}
	}
	return topology.Hints{string(corev1.ResourceCPU): out}
}

// usable are the free CPUs that may be given away: with FullCores those of full cores.
func (m *Manager) usable(free cpuset.CPUSet) cpuset.CPUSet {
	if m.Options.FullCores {
		return m.taker().fullCores(free)
	}
	return free
}

func (m *Manager) taker() taker { return taker{m.Machine, m.Options} }

// Allocate gives a container of a pod its CPUs, of the nodes near first. An error is that it
// cannot have them; it is a topology.Rejection where they do not make whole cores, and a
// ledger.Waiting where pods that end have them.
func (m *Manager) Allocate(ctx context.Context, p *corev1.Pod, c *corev1.Container, near topology.Mask) error {
	n := m.Exclusive(p, c)
	if n == 0 {
		return nil
	}
	cpus, err := m.allocate(p, c, n, near)
	if err != nil {
		m.Errors.Inc()
		return err
	}
	if cpus.IsEmpty() {
		return nil
	}
	m.Log.Info("a container has CPUs for itself", "namespace", p.Namespace, "pod", p.Name, "container", c.Name,
		"cpus", cpus.String())
	m.changed(ctx)
	return nil
}

// Refused counts what a pod wanted that the node has no room for, without giving it anything:
// upstream looks for CPUs before it looks at the room, and counts in these families.
func (m *Manager) Refused(p *corev1.Pod) {
	m.choosing.Lock()
	defer m.choosing.Unlock()
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			n := m.Exclusive(p, &list[i])
			if n == 0 {
				continue
			}
			m.Requests.Inc()
			if _, err := m.choose(p, &list[i], n, 0); err != nil {
				m.Errors.Inc()
				return // the others are not looked at any more
			}
		}
	}
}

// allocate returns the CPUs that a container has now and had not before.
func (m *Manager) allocate(p *corev1.Pod, c *corev1.Container, n int, near topology.Mask) (cpuset.CPUSet, error) {
	m.choosing.Lock()
	defer m.choosing.Unlock()
	record := m.Ledger.Get(p.UID)
	if _, has := record.of(c.Name); has {
		return cpuset.New(), nil
	}
	m.Requests.Inc()
	cpus, err := m.choose(p, c, n, near)
	if err != nil {
		return cpus, err
	}
	if record == nil {
		record = &Pod{Pod: ledger.Of(p)}
	}
	return cpus, m.Ledger.Put(record.with(c.Name, cpus))
}

func (m *Manager) changed(ctx context.Context) {
	if m.Changed != nil {
		m.Changed(ctx)
	}
}

// choose chooses n CPUs: those that init containers before it had first, then near ones, then
// the rest.
func (m *Manager) choose(p *corev1.Pod, c *corev1.Container, n int, near topology.Mask) (cpuset.CPUSet, error) {
	threads := m.Machine.ThreadsPerCore()
	if m.Options.FullCores && n%threads != 0 {
		return cpuset.CPUSet{}, &topology.Rejection{Reason: unalignedCores, Message: fmt.Sprintf(
			"SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", n, threads)}
	}
	m.Ledger.Sweep()
	reuse := m.reusable(p, c)
	free := m.usable(m.free().Union(reuse))
	if free.Size() < n {
		err := error(&topology.Rejection{Reason: unalignedCores, Message: fmt.Sprintf("SMT Alignment Error: "+
			"not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, CPUs per core = %d",
			free.Size(), n, threads)})
		if !m.Options.FullCores {
			_, err = m.taker().take(free, n)
		}
		if m.soon(free) >= n {
			err = &ledger.Waiting{Err: err}
		}
		return cpuset.CPUSet{}, err
	}
	out := cpuset.New()
	on := m.Machine.On(near)
	if near == 0 {
		on = m.Machine.All()
	}
	for _, from := range []cpuset.CPUSet{reuse.Intersection(on), reuse, on, m.Machine.All()} {
		from = from.Intersection(free)
		some, err := m.taker().take(from, min(n-out.Size(), from.Size()))
		if err != nil {
			return cpuset.CPUSet{}, err
		}
		out, free = out.Union(some), free.Difference(some)
	}
	return out, nil
}

// soon is how many CPUs are free when the pods that end have ended.
func (m *Manager) soon(free cpuset.CPUSet) int {
	n := free.Size()
	for _, p := range m.Ledger.EndingShares() {
		n += p.all().Size()
	}
	return n
}

// unalignedCores is upstream's word for CPUs that do not make whole cores.
const unalignedCores = "SMTAlignmentError"

// reusable are the CPUs of init containers before c, which will have ended when it runs, but
// for those that sidecars have.
func (m *Manager) reusable(p *corev1.Pod, c *corev1.Container) cpuset.CPUSet {
	out := cpuset.New()
	record := m.Ledger.Get(p.UID)
	if record == nil {
		return out
	}
	for i := range p.Spec.InitContainers {
		before := &p.Spec.InitContainers[i]
		if before.Name == c.Name {
			return out
		}
		has, _ := record.of(before.Name)
		if restarts(before) {
			out = out.Difference(has)
		} else {
			out = out.Union(has)
		}
	}
	for i := range p.Spec.Containers {
		if p.Spec.Containers[i].Name == c.Name {
			break
		}
		has, _ := record.of(p.Spec.Containers[i].Name)
		out = out.Difference(has)
	}
	return out
}

// free are the CPUs that may be given away.
func (m *Manager) free() cpuset.CPUSet {
	return m.Machine.All().Difference(m.Reserved).Difference(m.taken())
}

// taken are those that were.
func (m *Manager) taken() cpuset.CPUSet {
	out := cpuset.New()
	for _, p := range m.Ledger.Shares() {
		out = out.Union(p.all())
	}
	return out
}

// Release frees the CPUs of a pod, whose containers have ended. Another pod that asked may have
// freed them before (Sweep): what it did not take is the others' from now on.
func (m *Manager) Release(ctx context.Context, p *corev1.Pod) error {
	had, err := m.Ledger.Release(p.UID)
	if err == nil && (had || m.podExclusive(p) > 0) {
		m.changed(ctx)
	}
	return err
}

// Has tells whether a pod has CPUs for itself.
func (m *Manager) Has(pod types.UID) bool { return m.Ledger.Get(pod) != nil }

// Of are the CPUs that a container runs on, and whether it has them for itself.
func (m *Manager) Of(pod types.UID, container string) (cpus cpuset.CPUSet, exclusive bool) {
	if s, has := m.Ledger.Get(pod).of(container); has {
		return s, true
	}
	return m.Shared(), false
}

// Shared is the pool of the containers that have no CPUs for themselves.
func (m *Manager) Shared() cpuset.CPUSet {
	out := m.Machine.All().Difference(m.taken())
	if m.Options.StrictReservation {
		out = out.Difference(m.Reserved)
	}
	return out
}

// Allocatable are the CPUs that may be given to containers, whoever has them.
func (m *Manager) Allocatable() cpuset.CPUSet { return m.Machine.All().Difference(m.Reserved) }
