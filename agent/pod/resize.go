package pod

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	resourcehelper "k8s.io/component-helpers/resource"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

// This file changes the resources of pods and their containers in place (KEP-1287,
// KEP-5419). What the API asks for is allocated when it fits, then actuated; until it
// is allocated the pod runs as if it had not been asked for. A container without a
// limit is limited as its pod, and changes with it.

// resizable calls f for the containers whose resources can change.
func resizable(p *corev1.Pod, f func(*corev1.Container)) {
	for i := range p.Spec.InitContainers {
		f(&p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		f(&p.Spec.Containers[i])
	}
}

func allocationOf(p *corev1.Pod) *record.Allocation {
	a := &record.Allocation{Pod: p.Spec.Resources, Containers: map[string]corev1.ResourceRequirements{}}
	resizable(p, func(c *corev1.Container) { a.Containers[c.Name] = c.Resources })
	return a
}

// complete allocates to a container what it asks for that the allocation does not
// tell of: earlier agents did not keep those of init containers.
func complete(a *record.Allocation, p *corev1.Pod) {
	if a == nil {
		return
	}
	if a.Containers == nil {
		a.Containers = map[string]corev1.ResourceRequirements{}
	}
	resizable(p, func(c *corev1.Container) {
		if _, ok := a.Containers[c.Name]; !ok {
			a.Containers[c.Name] = c.Resources
		}
	})
}

// withResources returns the pod as if it had the resources of a; p itself when
// it has.
func withResources(p *corev1.Pod, a *record.Allocation) *corev1.Pod {
	if a == nil || equality.Semantic.DeepEqual(allocationOf(p), a) {
		return p
	}
	p = p.DeepCopy()
	p.Spec.Resources = a.Pod
	resizable(p, func(c *corev1.Container) {
		if r, ok := a.Containers[c.Name]; ok {
			c.Resources = r
		}
	})
	return p
}

// allocate takes in what the API asks for and returns the pod as it shall run.
func (w *worker) allocate(p *corev1.Pod) *corev1.Pod {
	r := w.rec
	if p == w.specified && r.Resize.Pending == nil {
		return w.shown.allocated
	}
	w.specified = p
	complete(r.Allocated, p)
	allocated := withResources(p, r.Allocated)
	switch {
	case r.Allocated == nil:
		r.Allocated = allocationOf(p)
	case allocated == p:
		if r.Resize.Pending != nil {
			defer w.m.retryForRoom() // others may have given way
		}
		r.Resize.Pending = nil
	case r.Stopping != nil || r.Ended != nil || p.DeletionTimestamp != nil:
	default:
		w.m.growing.Lock() // until what it is given shows: the next counts it
		defer w.m.growing.Unlock()
		if v := w.resizeRefusal(p, allocated); v != nil {
			w.deferResize(p, v)
			break
		}
		from := r.Allocated.Pod
		if r.Resize.Actuating {
			from = r.Resize.From // the one before has not ended
		}
		r.Allocated = allocationOf(p)
		r.Resize = record.Resize{Actuating: true, From: from, Generation: p.Generation}
		w.m.Events.Event(p, "", corev1.EventTypeNormal,
			"ResizeStarted", resizeMessage(p, "Pod resize started", p.Generation, ""))
		allocated = p
	}
	w.mu.Lock()
	if waits := r.Resize.Pending != nil; waits != w.shown.waitsToGrow {
		w.shown.waitsToGrow, w.shown.waitsSince = waits, time.Now()
	}
	w.shown.allocated = allocated
	w.mu.Unlock()
	return allocated
}

func (w *worker) deferResize(p *corev1.Pod, v *record.Verdict) {
	z := &w.rec.Resize
	told := z.Pending != nil && z.Pending.Reason == v.Reason && z.PendingGeneration == p.Generation
	z.Pending, z.PendingGeneration = v, p.Generation
	if !told {
		w.m.Events.Event(p, "", corev1.EventTypeWarning, "Resize"+v.Reason,
			resizeMessage(p, "Pod resize "+v.Reason, p.Generation, v.Message))
	}
}

// resizeRefusal tells why the node does not give what p, which has what allocated
// has, asks for now. Of pods that wait for room those that go first are counted
// as if they had what they ask for, where it fits, beside what they have.
func (w *worker) resizeRefusal(p, allocated *corev1.Pod) *record.Verdict {
	if fixed := w.m.Fixed; fixed != nil {
		if why := fixed(p, allocated); why != "" {
			return &record.Verdict{Reason: corev1.PodReasonInfeasible, Message: why}
		}
	}
	others := w.m.others(p, false)
	if grows(allocated, p) {
		for _, q := range w.ahead(p) {
			i := slices.IndexFunc(others, func(o *corev1.Pod) bool { return o.UID == q.UID })
			if i < 0 {
				continue
			}
			rest := slices.Clone(others)
			rest[i] = allocated
			if fits(q, rest, w.m.Host.Allocatable) == nil {
				others[i] = greater(others[i], q)
			}
		}
	}
	if v := fits(p, others, w.m.Host.Allocatable); v != nil {
		return &record.Verdict{Reason: corev1.PodReasonDeferred, Message: v.Message}
	}
	return nil
}

// greater returns the pod that asks, with the greater of what it has and what it
// asks for: until it is resized it holds the one, then the other.
func greater(has, asks *corev1.Pod) *corev1.Pod {
	had := map[string]corev1.ResourceList{}
	resizable(has, func(c *corev1.Container) { had[c.Name] = c.Resources.Requests })
	out := asks.DeepCopy()
	resizable(out, func(c *corev1.Container) { c.Resources.Requests = most(c.Resources.Requests, had[c.Name]) })
	if out.Spec.Resources != nil && has.Spec.Resources != nil {
		out.Spec.Resources.Requests = most(out.Spec.Resources.Requests, has.Spec.Resources.Requests)
	}
	return out
}

func most(a, b corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	maps.Copy(out, a)
	for name, q := range b {
		if q.Cmp(out[name]) > 0 {
			out[name] = q
		}
	}
	return out
}

// grows tells whether a pod asks for more than it has of anything.
func grows(has, asks *corev1.Pod) bool {
	had := resourcehelper.PodRequests(has, resourcehelper.PodResourcesOptions{})
	for name, q := range resourcehelper.PodRequests(asks, resourcehelper.PodResourcesOptions{}) {
		if q.Cmp(had[name]) > 0 {
			return true
		}
	}
	return false
}

// waiting is a pod that waits for room, and since when.
type waiting struct {
	pod   *corev1.Pod
	since time.Time
}

// ahead are the pods that wait for room and go before p, in order, as they ask to be.
func (w *worker) ahead(p *corev1.Pod) []*corev1.Pod {
	w.m.mu.Lock()
	workers := w.m.list()
	w.m.mu.Unlock()
	self := waiting{p, time.Now()}
	var all []waiting
	for _, o := range workers {
		o.mu.Lock()
		q := waiting{o.pod, o.shown.waitsSince}
		waits := o.shown.waitsToGrow
		o.mu.Unlock()
		switch {
		case !waits || q.pod == nil || q.pod.DeletionTimestamp != nil:
		case o == w:
			self.since = q.since
		default:
			all = append(all, q)
		}
	}
	all = slices.DeleteFunc(all, func(q waiting) bool { return order(q, self) >= 0 })
	slices.SortFunc(all, order)
	var pods []*corev1.Pod
	for _, q := range all {
		pods = append(pods, q.pod)
	}
	return pods
}

// order is that in which pods are given room: by priority, guaranteed ones first,
// then by the time that they have waited.
func order(a, b waiting) int {
	rank := func(q waiting) (priority int32, guaranteed int) {
		if launch.QoS(q.pod) == corev1.PodQOSGuaranteed {
			guaranteed = 1
		}
		return ptr.Deref(q.pod.Spec.Priority, 0), guaranteed
	}
	aPriority, aGuaranteed := rank(a)
	bPriority, bGuaranteed := rank(b)
	return cmp.Or(cmp.Compare(bPriority, aPriority), cmp.Compare(bGuaranteed, aGuaranteed), a.since.Compare(b.since),
		cmp.Compare(a.pod.UID, b.pod.UID))
}

func resizeMessage(p *corev1.Pod, prefix string, generation int64, fault string) string {
	type one struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources"`
	}
	m := struct {
		InitContainers []one  `json:"initContainers,omitempty"`
		Containers     []one  `json:"containers,omitempty"`
		Generation     int64  `json:"generation"`
		Error          string `json:"error,omitempty"`
	}{Generation: generation, Error: fault}
	for i := range p.Spec.InitContainers {
		m.InitContainers = append(m.InitContainers,
			one{p.Spec.InitContainers[i].Name, p.Spec.InitContainers[i].Resources})
	}
	for i := range p.Spec.Containers {
		m.Containers = append(m.Containers, one{p.Spec.Containers[i].Name, p.Spec.Containers[i].Resources})
	}
	text, err := json.Marshal(m)
	if err != nil {
		return prefix
	}
	return prefix + ": " + string(text)
}

// retryForRoom lets pods try again that wait for room.
func (m *Manager) retryForRoom() {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	for _, w := range workers {
		w.mu.Lock()
		waits := w.shown.waitsToGrow || w.shown.waitsToStart
		w.mu.Unlock()
		if waits {
			w.poke()
		}
	}
}

// needsRestart tells whether a container must be restarted to have its
// resources instead of those that it was given.
func needsRestart(p *corev1.Pod, c *corev1.Container, had *corev1.ResourceRequirements) bool {
	want := due(p, c)
	for _, policy := range c.ResizePolicy {
		if policy.RestartPolicy == corev1.RestartContainer && changed(policy.ResourceName, had, want) {
			return true
		}
	}
	return false
}

func changed(name corev1.ResourceName, a, b *corev1.ResourceRequirements) bool {
	return !equality.Semantic.DeepEqual(a.Requests[name], b.Requests[name]) ||
		!equality.Semantic.DeepEqual(a.Limits[name], b.Limits[name])
}

// give records that a container has what p says.
func give(cr *record.Container, p *corev1.Pod, c *corev1.Container) {
	cr.Actuated, cr.Limits = c.Resources.DeepCopy(), launch.ContainerLimits(p.Spec.Resources, &c.Resources)
}

// due is what a container is to have, limited as its pod where it has no limit.
func due(p *corev1.Pod, c *corev1.Container) *corev1.ResourceRequirements {
	return &corev1.ResourceRequirements{
		Requests: c.Resources.Requests,
		Limits:   launch.ContainerLimits(p.Spec.Resources, &c.Resources),
	}
}

// outdated tells what the container was given, nil when that is what it is to have.
func outdated(r *record.Pod, p *corev1.Pod, c *corev1.Container, id string) *corev1.ResourceRequirements {
	cr := r.Get(c.Name)
	if cr.ID != id || cr.Actuated == nil {
		return nil
	}
	had := &corev1.ResourceRequirements{Requests: cr.Actuated.Requests, Limits: cr.Actuated.Limits}
	if cr.Limits != nil {
		had.Limits = cr.Limits
	}
	want := due(p, c)
	if !changed(corev1.ResourceCPU, had, want) && !changed(corev1.ResourceMemory, had, want) {
		return nil
	}
	return had
}

// growth is the pod's limits while it changes: the greater of both.
func growth(was, now launch.Limits) launch.Limits {
	out := now
	out.CPUShares = max(was.CPUShares, now.CPUShares)
	out.CPUQuota = max(was.CPUQuota, now.CPUQuota)
	out.MemoryBytes = max(was.MemoryBytes, now.MemoryBytes)
	if was.CPUQuota == 0 {
		out.CPUQuota = 0 // without a limit so far
	}
	if was.MemoryBytes == 0 {
		out.MemoryBytes = 0
	}
	return out
}

// resizing is one try to actuate what was allocated.
type resizing struct {
	pod        *corev1.Pod
	generation int64
	containers []resized
	// running are the IDs of all containers that run.
	running []string
	// from are the pod's limits before, limits those meanwhile.
	from, limits launch.Limits
}

type resized struct {
	c   *corev1.Container
	id  string
	had *corev1.ResourceRequirements
}

// resizing gathers the running containers that are to be given what was
// allocated; those that must be restarted for it get it then.
func (w *worker) resizing(p *corev1.Pod, o *record.Observed) *resizing {
	z := &resizing{pod: p, generation: w.rec.Resize.Generation}
	was := &record.Allocation{Pod: w.rec.Resize.From, Containers: map[string]corev1.ResourceRequirements{}}
	resizable(p, func(c *corev1.Container) {
		ob := o.Latest(c.Name)
		if ob == nil || ob.State != record.Running {
			return
		}
		z.running = append(z.running, ob.ID)
		if cr := w.rec.Get(c.Name); cr.ID == ob.ID && cr.Actuated != nil {
			was.Containers[c.Name] = *cr.Actuated
		}
		if had := outdated(w.rec, p, c, ob.ID); had != nil && !needsRestart(p, c, had) {
			z.containers = append(z.containers, resized{c, ob.ID, had})
		}
	})
	z.from = w.m.Host.PodLimits(withResources(p, was))
	z.limits = growth(z.from, w.m.Host.PodLimits(p))
	return z
}

// actuate changes the limits of running containers inside of the pod's.
func (w *worker) actuate(ctx context.Context, z *resizing) func() {
	err := w.m.viable(ctx, z)
	if err == nil {
		err = w.m.limit(z.pod, z.limits)
	}
	var done []resized
	for _, c := range z.containers {
		if err == nil {
			err = w.m.resize(ctx, z.pod, c)
		}
		if err == nil {
			done = append(done, c)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return func() {
		for _, c := range done {
			if cr := w.rec.Of(c.c.Name); cr.ID == c.id {
				give(cr, z.pod, c.c)
			}
		}
		switch {
		case w.rec.Resize.Generation != z.generation: // another wish has come
		case err != nil:
			w.resizeFailed(z.pod, err)
		default:
			w.rec.Resize.Updated = true
		}
	}
}

func (m *Manager) limit(p *corev1.Pod, l launch.Limits) error {
	if m.Limit == nil {
		return nil
	}
	return m.Limit(p, l)
}

// viable tells why no memory limit may shrink now: more than that is in use.
func (m *Manager) viable(ctx context.Context, z *resizing) error {
	less := map[string]resized{}
	for _, c := range z.containers {
		had, to := c.had.Limits.Memory().Value(), due(z.pod, c.c).Limits.Memory().Value()
		if to > 0 && (had == 0 || to < had) {
			less[c.id] = c
		}
	}
	limit := m.Host.PodLimits(z.pod).MemoryBytes
	shrinks := limit > 0 && (z.from.MemoryBytes == 0 || limit < z.from.MemoryBytes)
	if !shrinks && len(less) == 0 {
		return nil
	}
	var errs []error
	var sum int64
	for _, id := range z.running {
		st, err := m.Runtime.ContainerStats(ctx, id)
		if err != nil {
			return fmt.Errorf("failed to get container stats: %w", err)
		}
		used := int64(st.GetMemory().GetUsageBytes().GetValue())
		sum += used
		if c, ok := less[id]; ok {
			if to := due(z.pod, c.c).Limits.Memory().Value(); used >= to {
				errs = append(errs, fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)",
					c.c.Name, to, used))
			}
		}
	}
	if shrinks && sum >= limit {
		errs = slices.Insert(errs, 0,
			fmt.Errorf("attempting to set pod memory limit (%d) below current usage (%d)", limit, sum))
	}
	if len(errs) > 0 {
		return fmt.Errorf("cannot decrease memory limits: %w", utilerrors.NewAggregate(errs))
	}
	return nil
}

func (m *Manager) resize(ctx context.Context, p *corev1.Pod, z resized) error {
	to := launch.Resources(m.Host, p, z.c)
	linux := &criv1.LinuxContainerResources{
		Unified:            m.Host.MemoryFiles(p, z.c),
		CpuShares:          to.CpuShares,
		CpuPeriod:          to.CpuPeriod,
		CpuQuota:           m.quota(p, z.c, to),
		MemoryLimitInBytes: to.MemoryLimitInBytes,
	}
	err := m.Runtime.UpdateContainerResources(ctx, z.id, &criv1.ContainerResources{Linux: linux})
	if err != nil {
		return errors.New(grpcMessage(err))
	}
	return nil
}

// Pauses between tries to actuate a resize.
const (
	firstResize = time.Second
	lastResize  = time.Minute
)

func (w *worker) resizeFailed(p *corev1.Pod, err error) {
	z := &w.rec.Resize
	if z.Error != err.Error() {
		z.Error = err.Error()
		w.m.Events.Event(p, "", corev1.EventTypeWarning, "ResizeError",
			resizeMessage(p, "Pod resize error", z.Generation, z.Error))
	}
	z.Delay = min(max(2*z.Delay, firstResize), lastResize)
	z.Retry = time.Now().Add(z.Delay)
}

// resizeDone ends a resize once every container that runs has what was
// allocated.
func (w *worker) resizeDone(p *corev1.Pod, o *record.Observed, now time.Time) {
	z := &w.rec.Resize
	if !z.Actuating || !z.Updated || now.Before(z.Retry) {
		return
	}
	done := true
	resizable(p, func(c *corev1.Container) {
		ob := o.Latest(c.Name)
		done = done && (ob == nil || ob.State != record.Running || outdated(w.rec, p, c, ob.ID) == nil)
	})
	if !done {
		return
	}
	if err := w.m.limit(p, w.m.Host.PodLimits(p)); err != nil {
		w.resizeFailed(p, err)
		return
	}
	w.m.Events.Event(p, "", corev1.EventTypeNormal, "ResizeCompleted",
		resizeMessage(p, "Pod resize completed", z.Generation, ""))
	w.rec.Resize = record.Resize{Pending: z.Pending, PendingGeneration: z.PendingGeneration}
	w.m.retryForRoom()
}

// waitForRoom says that the pod starts when others are gone, or that it need not wait.
func (w *worker) waitForRoom(waits bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shown.waitsToStart = waits
}
