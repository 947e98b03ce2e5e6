package plugin

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/shoal-project/shoal/agent/device/topology"
)

// Hints tell on which NUMA nodes a container could have the devices that it asks for and
// does not have. Resources that say nothing of nodes have none, nor have those of which
// there are too few: why, Allocate tells.
func (m *Manager) Hints(p *corev1.Pod, c *corev1.Container) topology.Hints {
	out := topology.Hints{}
	for _, name := range m.asked(p, c) {
		if m.get(p.UID).of(c.Name, name) != nil {
			continue
		}
		q := c.Resources.Limits[corev1.ResourceName(name)]
		if list := m.hints(name, int(q.Value()), m.reusable(p, c, name)); list != nil {
			out[name] = list
		}
	}
	return out
}

// PodHints tell on which nodes all containers of a pod together could.
func (m *Manager) PodHints(p *corev1.Pod) topology.Hints {
	if m.get(p.UID) != nil {
		return nil
	}
	most, sums := map[string]int{}, map[string]int{} // of init containers, and of what runs beside them
	each := func(c *corev1.Container, ends bool) {
		for _, name := range m.asked(p, c) {
			q := c.Resources.Limits[corev1.ResourceName(name)]
			if most[name] = max(most[name], sums[name]+int(q.Value())); !ends {
				sums[name] += int(q.Value())
			}
		}
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		each(c, c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways)
	}
	for i := range p.Spec.Containers {
		each(&p.Spec.Containers[i], false)
	}
	out := topology.Hints{}
	for name, n := range most {
		if list := m.hints(name, n, nil); list != nil {
			out[name] = list
		}
	}
	return out
}

func (m *Manager) hints(name string, want int, reuse sets.Set[string]) []topology.Hint {
	m.mu.Lock()
	r := m.resources[name]
	m.mu.Unlock()
	m.sweep(r)
	m.mu.Lock()
	defer m.mu.Unlock()
	free := m.free(r, nil)
	for _, id := range sets.List(reuse) {
		if r.healthy(id) {
			free = append(free, id)
		}
	}
	if m.Nodes == 0 || want == 0 || len(free) < want || r.ready() != nil ||
		!slices.ContainsFunc(free, func(id string) bool { return r.nodes(id) != 0 }) {
		return nil
	}
	out := []topology.Hint{}
	least := m.Nodes.Count()
	for nodes := range m.Nodes.Subsets() {
		on := func(id string) bool { return r.nodes(id)&nodes != 0 }
		all, usable, kept := 0, 0, true
		for id := range r.devices {
			if on(id) {
				all++
			}
		}
		for _, id := range free {
			if on(id) {
				usable++
			}
		}
		for id := range reuse {
			kept = kept && on(id)
		}
		if all >= want {
			least = min(least, nodes.Count())
		}
		if usable >= want && kept {
			out = append(out, topology.Hint{Nodes: nodes})
		}
	}
	for i := range out {
		out[i].Preferred = out[i].Nodes.Count() == least
	}
	return out
}

// nodes are the NUMA nodes that a device is near to, none if it does not say.
func (r *resource) nodes(id string) topology.Mask { return nodesOf(r.devices[id]) }

func nodesOf(d *pluginapi.Device) (out topology.Mask) {
	for _, n := range d.GetTopology().GetNodes() {
		if n.GetID() >= 0 && n.GetID() <= topology.MaxNode {
			out |= topology.MaskOf(int(n.GetID()))
		}
	}
	return out
}

// nearness ranks a device: 2 for one that is near to nodes, 1 for one that does not say
// where it is, 0 for one that is elsewhere. All are alike where no nodes are meant.
func (r *resource) nearness(id string, nodes topology.Mask) int {
	switch on := r.nodes(id); {
	case nodes == 0 || on == 0:
		return 1
	case on&nodes != 0:
		return 2
	}
	return 0
}

// near are the devices of a list that are near to the nodes of a request; all where none are meant.
func (m *Manager) near(q *request, ids []string) []string {
	if q.near == 0 {
		return ids
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return q.r.nearness(id, q.near) < 2 })
}
