package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/shoal-project/shoal/agent/device/topology"
	"github.com/shoal-project/shoal/agent/metrics"
)

const (
	// comeback is how long pods wait for plugins after a start of the agent.
	comeback = 5 * time.Minute
	// absence is how long the devices of a plugin that went are counted in the capacity
	// (upstream: 5 minutes).
	absence = 5 * time.Minute
)

// Manager has plugins allocate devices. Its methods may be called at the same time.
type Manager struct {
	// Dir is device-plugins in the kubelet's root directory.
	Dir     string
	Records Records
	Known   KnownRecords
	// Boot is this boot of the machine.
	Boot string
	// Nodes are the machine's NUMA nodes; none: what devices say of theirs is only told on.
	Nodes topology.Mask
	// Ending tells whether a pod ends, and whether it has ended with all its containers,
	// though it may not be released yet; nil: no pod does.
	Ending func(pod types.UID) (ending, idle bool)
	// Changed is called when the number of devices changed, Poke with each pod of which a
	// device is in another state than before, Ready when a pod has waited for devices and
	// there are other ones, or free ones. All may be nil until Run is called.
	Changed func()
	Poke    func(pod types.UID)
	Ready   func()
	// Registrations and Allocations count what plugins do; nil: nobody does.
	Registrations *metrics.Counts
	Allocations   *metrics.Durations
	Log           *slog.Logger

	// writing serializes what is written of pods; it is taken before mu.
	writing sync.Mutex

	mu        sync.Mutex
	resources map[string]*resource
	pods      map[types.UID]*Pod // replaced, never changed
	// began is when the agent did.
	began time.Time
	// waiting are pods that wait for devices, since when; told: nobody does that has not
	// been told of what came since.
	waiting map[types.UID]time.Time
	told    bool
	closed  bool

	followers sync.WaitGroup
}

// resource is what is known of a resource that has, or had, a plugin.
type resource struct {
	name string
	// plugin is nil while it is away, since left.
	plugin *endpoint
	left   time.Time
	// devices are those that a plugin told of last; nil: none has since the agent began.
	// heard: it was the one that is there.
	devices map[string]*pluginapi.Device
	heard   bool
	// forgotten: it is not known to the next agent.
	forgotten bool
	// reserved are devices that are being allocated.
	reserved sets.Set[string]
	// turn holds a token while a pod chooses among the devices.
	turn chan struct{}
}

func newResource(name string) *resource {
	return &resource{name: name, left: time.Now(), reserved: sets.New[string](), turn: make(chan struct{}, 1)}
}

// healthy tells whether a device may be given to a pod.
func (r *resource) healthy(id string) bool {
	return r.plugin != nil && r.heard && r.devices[id].GetHealth() == pluginapi.Healthy
}

// expired tells whether the plugin has been away for so long that its devices do not
// count any more.
func (r *resource) expired() bool { return r.plugin == nil && time.Since(r.left) > absence }

// Load reads the records of an earlier agent, before the first pod is looked at.
func (m *Manager) Load() error {
	pods, err := m.Records.All()
	if err != nil {
		return fmt.Errorf("records of devices: %w", err)
	}
	known, err := m.Known.All()
	if err != nil {
		return fmt.Errorf("records of devices' resources: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.began = time.Now()
	m.resources, m.pods, m.waiting = map[string]*resource{}, map[types.UID]*Pod{}, map[types.UID]time.Time{}
	for name := range known {
		m.resources[name] = newResource(name)
	}
	for key, p := range pods {
		if err := p.decode(key); err != nil {
			m.Log.Error("which devices a pod has is not known: the record is damaged", "pod", key, "err", err)
			continue
		}
		m.pods[p.UID] = p
		for _, list := range p.Containers {
			for name := range list {
				if m.resources[name] == nil {
					m.resources[name] = newResource(name)
				}
			}
		}
	}
	return nil
}

// install takes a plugin that is connected.
func (m *Manager) install(name string, e *endpoint) error {
	ctx, end := context.WithCancel(context.Background())
	e.end = end
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.resources[name]
	switch {
	case m.closed:
		end()
		return errors.New("the agent ends")
	case r == nil && len(m.resources) >= maxPlugins:
		end()
		return fmt.Errorf("device plugin %s: there are %d resources with plugins already", name, len(m.resources))
	case r == nil:
		r = newResource(name)
		m.resources[name] = r
	}
	if err := m.Known.Put(name, &Known{Name: name}); err != nil {
		m.Log.Warn("that a resource has a plugin is not kept: after a start of the agent pods do not wait for it",
			"resource", name, "err", err)
	}
	if r.plugin != nil {
		r.plugin.end() // another takes its place
	}
	r.plugin, r.forgotten = e, false
	m.Registrations.Inc(name)
	m.Log.Info("device plugin is registered", "resource", name, "endpoint", e.path)
	m.followers.Go(func() { m.follow(ctx, r, e) })
	return nil
}

// Deregister ends with the plugin of a resource that serves at endpoint.
func (m *Manager) Deregister(name, endpoint string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.resources[name]; r != nil && r.plugin != nil && r.plugin.path == endpoint {
		r.plugin.end()
	}
}

// heard takes a plugin's list of devices.
func (m *Manager) heard(r *resource, e *endpoint, list []*pluginapi.Device) {
	devices := make(map[string]*pluginapi.Device, len(list))
	for _, d := range list {
		devices[d.GetID()] = d
	}
	m.mu.Lock()
	if r.plugin != e {
		m.mu.Unlock()
		return
	}
	before := m.figures(r)
	pods := m.holders(r, func(id string) bool {
		return !r.heard || r.devices[id].GetHealth() != devices[id].GetHealth()
	})
	r.devices, r.heard = devices, true
	after := m.figures(r)
	ready := m.wanted()
	m.mu.Unlock()
	m.tell(before != after, pods, ready)
}

// lost takes that the stream of a plugin ended.
func (m *Manager) lost(r *resource, e *endpoint, err error) {
	m.mu.Lock()
	if r.plugin != e || m.closed {
		m.mu.Unlock()
		return
	}
	r.plugin, r.heard, r.left = nil, false, time.Now()
	pods := m.holders(r, func(string) bool { return true })
	m.mu.Unlock()
	m.Log.Warn("device plugin is gone: its devices are unhealthy until it registers again",
		"resource", r.name, "endpoint", e.path, "err", err)
	m.tell(true, pods, false)
}

// wanted tells whether pods that wait are to be told; it is called with the lock.
func (m *Manager) wanted() bool {
	defer func() { m.told = true }()
	return len(m.waiting) > 0 && !m.told
}

func (m *Manager) tell(figures bool, pods []types.UID, ready bool) {
	if figures && m.Changed != nil {
		m.Changed()
	}
	for _, uid := range pods {
		if m.Poke != nil {
			m.Poke(uid)
		}
	}
	if ready && m.Ready != nil {
		m.Ready()
	}
}

// holders are the pods that have one of the devices; it is called with the lock.
func (m *Manager) holders(r *resource, of func(id string) bool) (pods []types.UID) {
	for uid, p := range m.pods {
		if slices.ContainsFunc(sets.List(p.ids(r.name)), of) {
			pods = append(pods, uid)
		}
	}
	slices.Sort(pods)
	return pods
}

// close ends all connections.
func (m *Manager) close() {
	m.mu.Lock()
	m.closed = true
	for _, r := range m.resources {
		if r.plugin != nil {
			r.plugin.end()
		}
	}
	m.mu.Unlock()
	m.followers.Wait()
}

// Has tells whether the devices of a resource are given by plugins.
func (m *Manager) Has(name corev1.ResourceName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.resources[string(name)] != nil
}

// Pods are those that have devices.
func (m *Manager) Pods() (out []*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(m.pods)) {
		out = append(out, m.pods[uid].object())
	}
	return out
}

// Release frees the devices of a pod, whose containers have ended.
func (m *Manager) Release(uid types.UID) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	delete(m.waiting, uid)
	has := m.pods[uid] != nil
	m.mu.Unlock()
	if !has {
		return nil
	}
	if err := m.Records.Delete(string(uid)); err != nil {
		return fmt.Errorf("record of devices: %w", err)
	}
	m.mu.Lock()
	delete(m.pods, uid)
	ready := m.wanted()
	m.mu.Unlock()
	m.tell(false, nil, ready)
	return nil
}

// keep has an allocation known, once it is on the disk.
func (m *Manager) keep(p *corev1.Pod, container, resource string, a *Allocation) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	record := m.get(p.UID)
	if record == nil {
		record = &Pod{UID: p.UID, Namespace: p.Namespace, Name: p.Name}
	}
	record = record.with(container, resource, a)
	if err := m.Records.PutNow(string(p.UID), record); err != nil {
		return fmt.Errorf("record of devices: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods[p.UID] = record
	return nil
}

func (m *Manager) get(uid types.UID) *Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[uid]
}
