package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shoal-project/shoal/agent/device/topology"
)

// maxAnswer is the size of what a plugin answers for a container, in bytes: it is kept.
const maxAnswer = 256 << 10

// Waiting tells that a pod may get its devices soon, and what it waits for until when: a
// plugin that has not been heard since the agent began, or pods that end.
type Waiting struct {
	For   string
	Until time.Time
	err   error
}

func (w *Waiting) Error() string { return w.err.Error() }

func (w *Waiting) Unwrap() error { return w.err }

// Allocate gives a container of a pod the devices that it asks for, if it has none, of the
// NUMA nodes near first. Init containers run one after the other: what they have is used
// again by those after them, but what sidecars have, which run on. An error is that the pod
// cannot have them; it is a Waiting where that may change.
func (m *Manager) Allocate(ctx context.Context, p *corev1.Pod, c *corev1.Container, near topology.Mask) error {
	for _, name := range m.asked(p, c) {
		if err := m.ensure(ctx, p, c, name, near); err != nil {
			return err
		}
	}
	return nil
}

// reusable are the devices of a resource that init containers before c have, which will have
// ended when it runs, but for those that sidecars have, and main containers before it.
func (m *Manager) reusable(p *corev1.Pod, c *corev1.Container, name string) sets.Set[string] {
	out := sets.New[string]()
	record := m.get(p.UID)
	for i := range p.Spec.InitContainers {
		before := &p.Spec.InitContainers[i]
		if before.Name == c.Name {
			return out
		}
		has := sets.New(record.of(before.Name, name).ids()...)
		if before.RestartPolicy != nil && *before.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out = out.Difference(has)
		} else {
			out = out.Union(has)
		}
	}
	for i := range p.Spec.Containers {
		if p.Spec.Containers[i].Name == c.Name {
			break
		}
		out = out.Difference(sets.New(record.of(p.Spec.Containers[i].Name, name).ids()...))
	}
	return out
}

// asked are the resources of plugins that a container asks for, in order. Those for which
// the scheduler made a claim come with that.
func (m *Manager) asked(p *corev1.Pod, c *corev1.Container) (names []string) {
	for name, q := range c.Resources.Limits {
		if strings.Contains(string(name), "/") && !q.IsZero() && m.Has(name) && !claimed(p, c.Name, string(name)) {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

func claimed(p *corev1.Pod, container, resource string) bool {
	s := p.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(r corev1.ContainerExtendedResourceRequest) bool {
		return r.ContainerName == container && r.ResourceName == resource
	})
}

// ensure gives a container its devices of one resource.
func (m *Manager) ensure(ctx context.Context, p *corev1.Pod, c *corev1.Container, name string,
	near topology.Mask) error {
	q := c.Resources.Limits[corev1.ResourceName(name)]
	want := int(q.Value())
	had := m.get(p.UID).of(c.Name, name)
	switch {
	case had == nil:
	case len(had.Devices) != want:
		return fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d",
			p.UID, c.Name, name, len(had.Devices), want)
	case had.Boot == m.Boot:
		return nil
	}
	m.mu.Lock()
	r := m.resources[name]
	m.mu.Unlock()
	e, chosen, err := m.choose(ctx, &request{r: r, pod: p.UID, want: want, had: had,
		reuse: m.reusable(p, c, name), near: near})
	if err != nil {
		return err
	}
	defer m.unreserve(name, chosen)
	ids := make([]string, 0, want)
	for _, d := range chosen {
		ids = append(ids, d.ID)
	}
	begin := time.Now()
	answer, err := e.allocate(ctx, ids)
	m.Allocations.Since(begin, name)
	if err != nil {
		return fmt.Errorf("device plugin of %s: %w", name, err)
	}
	if n := proto.Size(answer); n > maxAnswer {
		return fmt.Errorf("device plugin of %s: its answer has %d bytes, at most %d are taken", name, n, maxAnswer)
	}
	data, err := proto.Marshal(answer)
	if err != nil {
		return fmt.Errorf("device plugin of %s: %w", name, err)
	}
	m.mu.Lock()
	delete(m.waiting, p.UID)
	m.mu.Unlock()
	return m.keep(p, c.Name, name, &Allocation{
		Devices:  chosen,
		Answer:   data,
		PreStart: e.options.GetPreStartRequired(),
		Boot:     m.Boot,
		answer:   answer,
	})
}

// request is what a container of a pod asks for.
type request struct {
	r    *resource
	pod  types.UID
	want int
	// had is what it had in an earlier boot of the machine, which it gets again; reuse
	// what it is to get first.
	had   *Allocation
	reuse sets.Set[string]
	// near are the NUMA nodes whose devices it is to get before others.
	near topology.Mask
}

// choose reserves devices: those that the container had, or else those to be used again
// first, then what the plugin prefers.
func (m *Manager) choose(ctx context.Context, q *request) (*endpoint, []Device, error) {
	select {
	case q.r.turn <- struct{}{}:
		defer func() { <-q.r.turn }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	e, ids, free, err := m.pick(q, nil)
	if err == nil && q.had == nil && len(q.reuse) < q.want && e.options.GetGetPreferredAllocationAvailable() {
		e, ids, err = m.prefer(ctx, q, e, free)
	}
	if err != nil {
		return nil, nil, err
	}
	chosen, err := m.reserve(q.r, e, ids)
	return e, chosen, err
}

// prefer asks the plugin which devices it prefers. It is a hint: one that does not come
// is done without.
func (m *Manager) prefer(ctx context.Context, q *request, e *endpoint, free []string) (*endpoint, []string, error) {
	include := sets.List(q.reuse)
	if near := m.near(q, free); len(include)+len(near) >= q.want {
		free = near // the plugin chooses among these
	} else {
		include = append(include, near...)
		free = slices.DeleteFunc(free, func(id string) bool { return slices.Contains(near, id) })
	}
	preferred, err := e.prefer(ctx, append(slices.Clone(include), free...), include, q.want)
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	if err != nil {
		m.Log.Warn("a device plugin does not say which devices it prefers", "resource", q.r.name, "err", err)
	}
	e, ids, _, err := m.pick(q, preferred)
	return e, ids, err
}

// pick tells which devices a container gets as things are, and which others are free.
func (m *Manager) pick(q *request, preferred []string) (e *endpoint, ids, free []string, err error) {
	for swept := false; ; swept = true {
		e, ids, free, err = m.look(q, preferred)
		if err != nil || len(ids) == q.want {
			return e, ids, free, err
		}
		if swept {
			err := fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d",
				q.r.name, q.want-len(q.reuse), len(free))
			return nil, nil, nil, m.waitForPods(q, q.want-len(ids), err)
		}
		m.sweep(q.r)
	}
}

// look is pick without an error where there are too few.
func (m *Manager) look(q *request, preferred []string) (e *endpoint, ids, free []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := q.r.ready(); err != nil {
		return nil, nil, nil, m.waitForPlugin(q, err)
	}
	if q.had == nil {
		free = m.free(q.r, q.reuse)
		slices.SortStableFunc(free, func(a, b string) int {
			return -cmp.Compare(q.r.nearness(a, q.near), q.r.nearness(b, q.near))
		})
		return q.r.plugin, pick(q.want, sets.List(q.reuse), preferred, free), free, nil
	}
	for _, id := range q.had.ids() {
		if !q.r.healthy(id) {
			return nil, nil, nil, m.waitForPlugin(q, fmt.Errorf(
				"previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s", q.r.name))
		}
	}
	return q.r.plugin, q.had.ids(), nil, nil
}

// pick takes devices: those that are used again first, then those preferred that are
// free, then free ones in their order.
func pick(want int, reuse, preferred, free []string) []string {
	var out []string
	chosen, isFree := sets.New[string](), sets.New(free...)
	take := func(list []string, ok func(string) bool) {
		for _, id := range list {
			if len(out) < want && ok(id) && !chosen.Has(id) {
				chosen.Insert(id)
				out = append(out, id)
			}
		}
	}
	take(reuse, func(string) bool { return true })
	take(preferred, isFree.Has)
	take(free, isFree.Has)
	return out
}

// ready tells why no device of a resource can be given to anybody.
func (r *resource) ready() error {
	if r.plugin != nil {
		for id := range r.devices {
			if r.healthy(id) {
				return nil
			}
		}
	}
	return fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", r.name)
}

// waitForPlugin makes a Waiting of an error where the plugin is expected: it has not told of any
// device since the agent began, or the machine began anew, and it may not yet have told
// of all.
func (m *Manager) waitForPlugin(q *request, err error) error {
	until := m.began.Add(comeback)
	if q.r.devices != nil && q.had == nil || time.Now().After(until) {
		return err
	}
	m.waiting[q.pod], m.told = m.began, false
	return &Waiting{For: "the device plugin", Until: until, err: err}
}

// waitForPods makes a Waiting of an error where pods that end have as many healthy
// devices: the scheduler does not count those that were deleted by force.
func (m *Manager) waitForPods(q *request, missing int, err error) error {
	if m.Ending == nil {
		return err
	}
	m.mu.Lock()
	holders := m.holders(q.r, q.r.healthy)
	m.mu.Unlock()
	for _, uid := range holders {
		if ending, _ := m.Ending(uid); ending {
			missing -= m.healthyOf(q.r, uid)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	since, waits := m.waiting[q.pod]
	if !waits {
		since = time.Now()
	}
	if missing > 0 || time.Since(since) > comeback {
		return err
	}
	m.waiting[q.pod], m.told = since, false
	return &Waiting{For: "pods that end", Until: since.Add(comeback), err: err}
}

// healthyOf is how many healthy devices of a resource a pod has.
func (m *Manager) healthyOf(r *resource, pod types.UID) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.pods[pod]; p != nil {
		for id := range p.ids(r.name) {
			if r.healthy(id) {
				n++
			}
		}
	}
	return n
}

// free are the healthy devices that nobody has, in order; it is called with the lock.
func (m *Manager) free(r *resource, reuse sets.Set[string]) []string {
	used := r.reserved.Union(reuse)
	for _, p := range m.pods {
		used = used.Union(p.ids(r.name))
	}
	var out []string
	for _, id := range slices.Sorted(maps.Keys(r.devices)) {
		if r.healthy(id) && !used.Has(id) {
			out = append(out, id)
		}
	}
	return out
}

// sweep frees the devices of pods that have ended and are not released yet: the
// scheduler does not count them any more.
func (m *Manager) sweep(r *resource) {
	if m.Ending == nil {
		return
	}
	m.mu.Lock()
	pods := m.holders(r, func(string) bool { return true })
	m.mu.Unlock()
	for _, uid := range pods {
		if _, idle := m.Ending(uid); !idle {
			continue
		}
		if err := m.Release(uid); err != nil {
			m.Log.Warn("devices of a pod that has ended are not free yet", "pod", uid, "err", err)
		}
	}
}

// reserve keeps devices from being chosen again until they are recorded.
func (m *Manager) reserve(r *resource, e *endpoint, ids []string) ([]Device, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.plugin != e {
		return nil, fmt.Errorf("device plugin of %s went meanwhile", r.name)
	}
	out := make([]Device, 0, len(ids))
	for _, id := range ids {
		r.reserved.Insert(id)
		d := Device{ID: id}
		for _, n := range r.devices[id].GetTopology().GetNodes() {
			d.Nodes = append(d.Nodes, n.GetID())
		}
		out = append(out, d)
	}
	return out, nil
}

func (m *Manager) unreserve(name string, devices []Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range devices {
		m.resources[name].reserved.Delete(d.ID)
	}
}

// preStart asks a plugin, if it wants so, before a container of a pod is started.
func (m *Manager) preStart(ctx context.Context, name string, a *Allocation) error {
	m.mu.Lock()
	r := m.resources[name]
	e, asks := r.plugin, a.PreStart
	if e != nil {
		asks = e.options.GetPreStartRequired()
	}
	m.mu.Unlock()
	if !asks {
		return nil
	}
	err := errors.New("the plugin is away")
	if e != nil {
		err = e.preStart(ctx, a.ids())
	}
	if err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %s: %w", name, err)
	}
	return nil
}
