package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/device/ledger"
	"github.com/shoal-project/shoal/agent/device/topology"
	"github.com/shoal-project/shoal/agent/metrics"
)

// Manager gives containers memory. Its methods may be called at the same time.
type Manager struct {
	// Allocatable is what may be given of each node, by kind, in bytes.
	Allocatable Amounts
	// Ledger has the records of pods.
	Ledger *ledger.Ledger[Pod, *Pod]
	// QoS is a pod's class.
	QoS func(*corev1.Pod) corev1.PodQOSClass
	// Requests and Errors count what containers ask for; nil: nobody does.
	Requests, Errors *metrics.Counts

	// choosing is held from the look at what is free until the choice is recorded.
	choosing sync.Mutex
}

// Amounts are bytes of NUMA nodes, by kind.
type Amounts map[int]map[corev1.ResourceName]int64

// Add adds to what there is of a node.
func (a Amounts) Add(node int, kind corev1.ResourceName, bytes int64) {
	if a[node] == nil {
		a[node] = map[corev1.ResourceName]int64{}
	}
	a[node][kind] += bytes
}

// Each calls f for all that there is, in order.
func (a Amounts) Each(f func(node int, kind corev1.ResourceName, bytes int64)) {
	for _, node := range slices.Sorted(maps.Keys(a)) {
		for _, kind := range slices.Sorted(maps.Keys(a[node])) {
			f(node, kind, a[node][kind])
		}
	}
}

func (a Amounts) raise(o Amounts) {
	o.Each(func(node int, kind corev1.ResourceName, bytes int64) {
		a.Add(node, kind, max(0, bytes-a[node][kind]))
	})
}

func (a Amounts) addBlock(b *Block) {
	for node, n := range b.On {
		a.Add(node, b.Kind, n)
	}
}

func (a Amounts) clone() Amounts {
	out := Amounts{}
	a.Each(out.Add)
	return out
}

// Kind tells whether a resource is memory that NUMA nodes have: memory or huge pages.
func Kind(name corev1.ResourceName) bool {
	return name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// Allocatable is what of a machine's memory may be given to pods: without what is reserved of
// each node and kind. A node of which more is reserved than it has gives nothing.
func Allocatable(m *topology.Machine, reserved Amounts) Amounts {
	out := sizes(m)
	out.Each(func(node int, kind corev1.ResourceName, bytes int64) {
		out[node][kind] = max(0, bytes-reserved[node][kind])
	})
	return out
}

// sizes are what the nodes have. Memory is what is not huge pages.
func sizes(m *topology.Machine) Amounts {
	out := Amounts{}
	for id, n := range m.Nodes {
		out.Add(id, corev1.ResourceMemory, n.MemoryBytes)
		for size, bytes := range n.HugePages {
			out.Add(id, corev1.ResourceMemory, -bytes)
			out.Add(id, corev1.ResourceName(corev1.ResourceHugePagesPrefix+
				resource.NewQuantity(size, resource.BinarySI).String()), bytes)
		}
	}
	return out
}

// Spread takes what is reserved of a machine of all its nodes, in proportion to what they have.
func Spread(m *topology.Machine, reserved corev1.ResourceList) Amounts {
	has, all, out := sizes(m), map[corev1.ResourceName]int64{}, Amounts{}
	has.Each(func(_ int, kind corev1.ResourceName, bytes int64) { all[kind] += bytes })
	has.Each(func(node int, kind corev1.ResourceName, bytes int64) {
		q := reserved[kind]
		share := float64(bytes) / float64(max(1, all[kind]))
		out.Add(node, kind, int64(share*float64(q.Value())))
	})
	return out
}

// Load reads the records of an earlier agent, before the first pod is looked at. One that is
// damaged, or of nodes that are not there any more, is dropped.
func (m *Manager) Load() error {
	return m.Ledger.Load(func(p *Pod) error {
		for node := range p.peak() {
			if _, there := m.Allocatable[node]; !there {
				return fmt.Errorf("the machine has no NUMA node %d", node)
			}
		}
		return p.check()
	})
}

// asked is what a container has to be given, in bytes by kind.
func (m *Manager) asked(p *corev1.Pod, c *corev1.Container) amounts {
	if p.Spec.Resources != nil || m.QoS(p) != corev1.PodQOSGuaranteed {
		return nil
	}
	out := amounts{}
	for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
		for kind, q := range list {
			if Kind(kind) {
				if out[kind] = q.Value(); out[kind] == 0 {
					delete(out, kind)
				}
			}
		}
	}
	return out
}

// Hints are those of a container.
func (m *Manager) Hints(p *corev1.Pod, c *corev1.Container) topology.Hints {
	record := m.Ledger.Get(p.UID)
	want := m.asked(p, c)
	if len(want) == 0 || record.of(c.Name) != nil {
		return nil
	}
	return m.hints(want, p.UID, record.beside())
}

// PodHints are those of all containers of a pod together.
func (m *Manager) PodHints(p *corev1.Pod) topology.Hints {
	if m.Ledger.Get(p.UID) != nil {
		return nil
	}
	most, beside := amounts{}, amounts{}
	each := func(c *corev1.Container, ends bool) {
		for kind, n := range m.asked(p, c) {
			if most[kind] = max(most[kind], beside[kind]+n); !ends {
				beside[kind] += n
			}
		}
	}
	for i := range p.Spec.InitContainers {
		each(&p.Spec.InitContainers[i], !restarts(&p.Spec.InitContainers[i]))
	}
	for i := range p.Spec.Containers {
		each(&p.Spec.Containers[i], false)
	}
	if len(most) == 0 {
		return nil
	}
	return m.hints(most, p.UID, Amounts{})
}

func restarts(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// hints are the same for all kinds: a container has them of the same nodes.
func (m *Manager) hints(want amounts, pod types.UID, beside Amounts) topology.Hints {
	m.Ledger.Sweep()
	list := m.sets(want, pod, beside)
	if len(list) == 0 && len(m.Ledger.EndingShares()) > 0 {
		return nil // it is worth waiting, as Allocate tells
	}
	out := topology.Hints{}
	for kind := range want {
		out[string(kind)] = list
	}
	return out
}

// sets are the sets of nodes that can give what is wanted beside what the pod has already;
// the preferred ones are as small as they could be with nobody else there.
func (m *Manager) sets(want amounts, pod types.UID, beside Amounts) []topology.Hint {
	used := m.used(pod)
	out := []topology.Hint{}
	least := len(m.Allocatable)
	for nodes := range topology.MaskOf(slices.Collect(maps.Keys(m.Allocatable))...).Subsets() {
		could, can := true, true
		for kind, n := range want {
			var all, free int64
			for _, node := range nodes.Nodes() {
				has := m.Allocatable[node][kind]
				all, free = all+has, free+max(0, has-used[node][kind]-beside[node][kind])
			}
			could, can = could && all >= n, can && free >= n
		}
		if could {
			least = min(least, nodes.Count())
		}
		if can && !m.mixes(nodes) {
			out = append(out, topology.Hint{Nodes: nodes})
		}
	}
	for i := range out {
		out[i].Preferred = out[i].Nodes.Count() == least
	}
	return out
}

// mixes tells whether others are on some of the nodes, but not on the same ones.
func (m *Manager) mixes(nodes topology.Mask) bool {
	for _, p := range m.Ledger.Shares() {
		for i := range p.Containers {
			for j := range p.Containers[i].Blocks {
				if b := p.Containers[i].Blocks[j].Nodes; b&nodes != 0 && b != nodes {
					return true
				}
			}
		}
	}
	return false
}

// used is what pods but this one have of each node.
func (m *Manager) used(but types.UID) Amounts {
	out := Amounts{}
	for _, p := range m.Ledger.Shares() {
		if p.UID == but {
			continue
		}
		p.peak().Each(out.Add)
	}
	return out
}

// Allocate gives a container of a pod its memory, of the nodes near, and more if these have too
// little. An error is that it cannot have it; it is a ledger.Waiting while pods end that have some.
func (m *Manager) Allocate(_ context.Context, p *corev1.Pod, c *corev1.Container, near topology.Mask) error {
	want := m.asked(p, c)
	if len(want) == 0 {
		return nil
	}
	m.choosing.Lock()
	defer m.choosing.Unlock()
	record := m.Ledger.Get(p.UID)
	if record.of(c.Name) != nil {
		return nil
	}
	m.Requests.Inc()
	err := m.allocate(p, c, record, want, near)
	if err != nil {
		m.Errors.Inc()
	}
	return err
}

// Refused counts what a pod wanted that the node has no room for, without giving it anything:
// upstream looks for memory before it looks at the room, and counts in these families.
func (m *Manager) Refused(p *corev1.Pod) {
	m.choosing.Lock()
	defer m.choosing.Unlock()
	m.Ledger.Sweep()
	beside := Amounts{}
	for n, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			want := m.asked(p, &list[i])
			if len(want) == 0 {
				continue
			}
			m.Requests.Inc()
			nodes, err := m.choose(want, p.UID, beside, 0)
			if err != nil {
				m.Errors.Inc()
				return // the others are not looked at any more
			}
			if n == 1 || restarts(&list[i]) { // others end before the next one begins
				for _, b := range m.blocks(want, p.UID, beside, nodes) {
					beside.addBlock(&b)
				}
			}
		}
	}
}

func (m *Manager) allocate(p *corev1.Pod, c *corev1.Container, record *Pod, want amounts, near topology.Mask) error {
	m.Ledger.Sweep()
	nodes, err := m.choose(want, p.UID, record.beside(), near)
	if err != nil {
		if len(m.Ledger.EndingShares()) > 0 {
			err = &ledger.Waiting{Err: err}
		}
		return err
	}
	if record == nil {
		record = &Pod{Pod: ledger.Of(p)}
	}
	init := slices.ContainsFunc(p.Spec.InitContainers, func(i corev1.Container) bool { return i.Name == c.Name })
	return m.Ledger.Put(record.with(Container{Name: c.Name, Init: init, Sidecar: init && restarts(c),
		Blocks: m.blocks(want, p.UID, record.beside(), nodes)}))
}

// choose chooses the smallest set of nodes that can give what is wanted and has those near.
func (m *Manager) choose(want amounts, pod types.UID, beside Amounts, near topology.Mask) (topology.Mask, error) {
	var best topology.Mask
	for _, h := range m.sets(want, pod, beside) {
		if h.Nodes&near == near && (best == 0 || h.Nodes.Count() < best.Count()) {
			best = h.Nodes
		}
	}
	if best == 0 && near != 0 {
		return m.choose(want, pod, beside, 0)
	}
	if best == 0 {
		return 0, errors.New("no NUMA nodes with enough memory are available")
	}
	return best, nil
}

// blocks are what a container has of nodes: as much as there is of the first, then of the next.
func (m *Manager) blocks(want amounts, pod types.UID, beside Amounts, nodes topology.Mask) (out []Block) {
	used := m.used(pod)
	for _, kind := range slices.Sorted(maps.Keys(want)) {
		b := Block{Kind: kind, Nodes: nodes, On: map[int]int64{}}
		rest := want[kind]
		for _, node := range nodes.Nodes() {
			free := max(0, m.Allocatable[node][kind]-used[node][kind]-beside[node][kind])
			b.On[node] = min(rest, free)
			rest -= b.On[node]
		}
		out = append(out, b)
	}
	return out
}

// Nodes are those that a container has memory of, none if it may take it anywhere.
func (m *Manager) Nodes(pod types.UID, container string) (out topology.Mask) {
	for _, b := range m.Blocks(pod, container) {
		out |= b.Nodes
	}
	return out
}

// Blocks are what a container has.
func (m *Manager) Blocks(pod types.UID, container string) []Block {
	c := m.Ledger.Get(pod).of(container)
	if c == nil {
		return nil
	}
	return c.Blocks
}
