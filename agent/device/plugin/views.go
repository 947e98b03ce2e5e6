package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Figures are how many devices there are, and how many of them are healthy.
type Figures struct{ Capacity, Allocatable int64 }

// Figures are by resource. A resource whose plugin stays away has 0.
func (m *Manager) Figures() map[corev1.ResourceName]Figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[corev1.ResourceName]Figures, len(m.resources))
	for name, r := range m.resources {
		out[corev1.ResourceName(name)] = m.figures(r)
		if r.expired() && !r.forgotten {
			// After the next start of the agent nobody waits for it.
			err := m.Known.Delete(name)
			r.forgotten = err == nil
			if err != nil {
				m.Log.Debug("that a resource had a plugin is still kept", "resource", name, "err", err)
			}
		}
	}
	return out
}

// figures is called with the lock.
func (m *Manager) figures(r *resource) (f Figures) {
	if r.expired() {
		return f
	}
	f.Capacity = int64(len(r.devices))
	for id := range r.devices {
		if r.healthy(id) {
			f.Allocatable++
		}
	}
	return f
}

// Options are what a container of a pod gets with its devices, nil for nothing: of the
// configuration only variables, mounts, devices, annotations and CDI devices are set. It
// is called before each start of the container.
func (m *Manager) Options(ctx context.Context, p *corev1.Pod, c *corev1.Container) (*criv1.ContainerConfig, error) {
	names := m.asked(p, c)
	if len(names) == 0 {
		return nil, nil
	}
	var list []*pluginapi.ContainerAllocateResponse
	for _, name := range names {
		a := m.get(p.UID).of(c.Name, name)
		if a == nil {
			// The pod was here before the resource had a plugin.
			if err := m.ensure(ctx, p, c, name, 0); err != nil {
				return nil, err
			}
			if a = m.get(p.UID).of(c.Name, name); a == nil {
				return nil, fmt.Errorf("container %s has no devices of %s", c.Name, name)
			}
		}
		if err := m.preStart(ctx, name, a); err != nil {
			return nil, err
		}
		list = append(list, a.answer)
	}
	return merge(list), nil
}

// merge makes one of the answers for a container. Of two that set the same, the first
// counts, as upstream.
func merge(list []*pluginapi.ContainerAllocateResponse) *criv1.ContainerConfig {
	out := &criv1.ContainerConfig{Annotations: map[string]string{}}
	seen := map[[2]string]bool{}
	first := func(kind, name string) bool {
		key := [2]string{kind, name}
		defer func() { seen[key] = true }()
		return !seen[key]
	}
	for _, a := range list {
		for _, name := range slices.Sorted(maps.Keys(a.GetEnvs())) {
			if first("env", name) {
				out.Envs = append(out.Envs, &criv1.KeyValue{Key: name, Value: []byte(a.GetEnvs()[name])})
			}
		}
		for _, v := range a.GetMounts() {
			if first("mount", v.GetContainerPath()) {
				out.Mounts = append(out.Mounts, &criv1.Mount{ContainerPath: v.GetContainerPath(),
					HostPath: v.GetHostPath(), Readonly: v.GetReadOnly()})
			}
		}
		for _, d := range a.GetDevices() {
			if first("device", d.GetContainerPath()) {
				out.Devices = append(out.Devices, &criv1.Device{ContainerPath: d.GetContainerPath(),
					HostPath: d.GetHostPath(), Permissions: d.GetPermissions()})
			}
		}
		for name, value := range a.GetAnnotations() {
			if first("annotation", name) {
				out.Annotations[name] = value
			}
		}
		for _, d := range a.GetCdiDevices() {
			if first("cdi", d.GetName()) {
				out.CDIDevices = append(out.CDIDevices, &criv1.CDIDevice{Name: d.GetName()})
			}
		}
	}
	return out
}

// Health is what is known of the devices of a container, by resource.
func (m *Manager) Health(p *corev1.Pod, c *corev1.Container) (out []corev1.ResourceStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	record := m.pods[p.UID]
	if record == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(record.Containers[c.Name])) {
		s := corev1.ResourceStatus{Name: corev1.ResourceName(name)}
		ids := record.of(c.Name, name).ids()
		slices.Sort(ids)
		for _, id := range slices.Compact(ids) {
			s.Resources = append(s.Resources, corev1.ResourceHealth{ResourceID: corev1.ResourceID(id),
				Health: m.resources[name].health(id)})
		}
		out = append(out, s)
	}
	return out
}

// health is not known of what the plugin does not tell of, and of all while it is away.
func (r *resource) health(id string) corev1.ResourceHealthStatus {
	d := r.devices[id]
	switch {
	case r.plugin == nil || !r.heard || d == nil:
		return corev1.ResourceHealthStatusUnknown
	case d.GetHealth() == pluginapi.Healthy:
		return corev1.ResourceHealthStatusHealthy
	}
	return corev1.ResourceHealthStatusUnhealthy
}

// Devices are those of a container in the form of the pod resources API.
func (m *Manager) Devices(uid types.UID, container string) (out []*podresourcesv1.ContainerDevices) {
	m.mu.Lock()
	defer m.mu.Unlock()
	record := m.pods[uid]
	if record == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(record.Containers[container])) {
		for _, d := range record.of(container, name).Devices {
			out = append(out, entries(name, d.ID, d.Nodes)...)
		}
	}
	return out
}

// Allocatable are all healthy devices in the form of the pod resources API, also those
// that pods have.
func (m *Manager) Allocatable() (out []*podresourcesv1.ContainerDevices) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.resources)) {
		r := m.resources[name]
		for _, id := range slices.Sorted(maps.Keys(r.devices)) {
			if !r.healthy(id) {
				continue
			}
			var nodes []int64
			for _, n := range r.devices[id].GetTopology().GetNodes() {
				nodes = append(nodes, n.GetID())
			}
			out = append(out, entries(name, id, nodes)...)
		}
	}
	return out
}

// entries are one for each NUMA node of a device, as upstream's.
func entries(resource, id string, nodes []int64) (out []*podresourcesv1.ContainerDevices) {
	if len(nodes) == 0 {
		return []*podresourcesv1.ContainerDevices{{ResourceName: resource, DeviceIds: []string{id}}}
	}
	for _, n := range nodes {
		out = append(out, &podresourcesv1.ContainerDevices{ResourceName: resource, DeviceIds: []string{id},
			Topology: &podresourcesv1.TopologyInfo{Nodes: []*podresourcesv1.NUMANode{{ID: n}}}})
	}
	return out
}
