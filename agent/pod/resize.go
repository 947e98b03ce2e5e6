package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

// This file changes the resources of pods in place (KEP-1287). What the API
// asks for is allocated when it fits, then actuated; until it is allocated the
// pod runs as if it had not been asked for.

// resizable calls f for the containers whose resources can change.
func resizable(p *corev1.Pod, f func(*corev1.Container)) {
	for i := range p.Spec.InitContainers {
		if record.Sidecar(&p.Spec.InitContainers[i]) {
			f(&p.Spec.InitContainers[i])
		}
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
	allocated := withResources(p, r.Allocated)
	switch {
	case r.Allocated == nil:
		r.Allocated = allocationOf(p)
	case allocated == p:
		r.Resize.Pending = nil
	case r.Stopping != nil || r.Ended != nil || p.DeletionTimestamp != nil:
	default:
		if v := w.resizeRefusal(p); v != nil {
			w.deferResize(p, v)
			break
		}
		r.Allocated = allocationOf(p)
		r.Resize = record.Resize{Actuating: true, Generation: p.Generation}
		w.m.Events.Event(p, "", corev1.EventTypeNormal,
			"ResizeStarted", resizeMessage(p, "Pod resize started", p.Generation, ""))
		allocated = p
	}
	w.mu.Lock()
	w.shown.allocated, w.shown.waitsToGrow = allocated, r.Resize.Pending != nil
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

// resizeRefusal tells why the node does not give what p asks for now.
func (w *worker) resizeRefusal(p *corev1.Pod) *record.Verdict {
	if !equality.Semantic.DeepEqual(p.Spec.Resources, w.rec.Allocated.Pod) {
		return &record.Verdict{Reason: corev1.PodReasonInfeasible, Message: "InPlacePodLevelResourcesVerticalScaling is disabled"}
	}
	if v := fits(p, w.m.others(p, false), w.m.Host.Allocatable); v != nil {
		return &record.Verdict{Reason: corev1.PodReasonDeferred, Message: v.Message}
	}
	return nil
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

// retryResizes lets pods try again that wait for room.
func (m *Manager) retryResizes() {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	for _, w := range workers {
		w.mu.Lock()
		waits := w.shown.waitsToGrow
		w.mu.Unlock()
		if waits {
			w.poke()
		}
	}
}

// needsRestart tells whether a container must be restarted to have its
// resources instead of those that it was given.
func needsRestart(c *corev1.Container, had *corev1.ResourceRequirements) bool {
	for _, p := range c.ResizePolicy {
		if p.RestartPolicy == corev1.RestartContainer && changed(p.ResourceName, had, &c.Resources) {
			return true
		}
	}
	return false
}

func changed(name corev1.ResourceName, a, b *corev1.ResourceRequirements) bool {
	return !equality.Semantic.DeepEqual(a.Requests[name], b.Requests[name]) ||
		!equality.Semantic.DeepEqual(a.Limits[name], b.Limits[name])
}

// actuated tells what the container was given, nil when nothing differs.
func actuated(r *record.Pod, c *corev1.Container, id string) *corev1.ResourceRequirements {
	cr := r.Get(c.Name)
	if cr.ID != id || cr.Actuated == nil ||
		!changed(corev1.ResourceCPU, cr.Actuated, &c.Resources) &&
			!changed(corev1.ResourceMemory, cr.Actuated, &c.Resources) {
		return nil
	}
	return cr.Actuated
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
	// limits are the pod's meanwhile.
	limits launch.Limits
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
	was := &record.Allocation{Pod: p.Spec.Resources, Containers: map[string]corev1.ResourceRequirements{}}
	resizable(p, func(c *corev1.Container) {
		ob := o.Latest(c.Name)
		if ob == nil || ob.State != record.Running {
			return
		}
		if had := actuated(w.rec, c, ob.ID); had != nil {
			was.Containers[c.Name] = *had
			if !needsRestart(c, had) {
				z.containers = append(z.containers, resized{c, ob.ID, had})
			}
		}
	})
	z.limits = growth(launch.PodLimits(withResources(p, was)), launch.PodLimits(p))
	return z
}

// actuate changes the limits of running containers inside of the pod's.
func (w *worker) actuate(ctx context.Context, z *resizing) func() {
	err := w.m.limit(z.pod, z.limits)
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
				cr.Actuated = c.c.Resources.DeepCopy()
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

func (m *Manager) resize(ctx context.Context, p *corev1.Pod, z resized) error {
	to := launch.Resources(m.Host, p, z.c)
	if had := z.had.Limits.Memory().Value(); to.MemoryLimitInBytes > 0 && (had == 0 || to.MemoryLimitInBytes < had) {
		st, err := m.Runtime.ContainerStats(ctx, z.id)
		if err != nil {
			return fmt.Errorf("failed to get container stats: %w", err)
		}
		if used := int64(st.GetMemory().GetUsageBytes().GetValue()); used >= to.MemoryLimitInBytes {
			return fmt.Errorf("cannot decrease memory limits: "+
				"attempting to set container %q memory limit (%d) below current usage (%d)",
				z.c.Name, to.MemoryLimitInBytes, used)
		}
	}
	linux := &criv1.LinuxContainerResources{
		CpuShares:          to.CpuShares,
		CpuPeriod:          to.CpuPeriod,
		CpuQuota:           to.CpuQuota,
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
		done = done && (ob == nil || ob.State != record.Running || actuated(w.rec, c, ob.ID) == nil)
	})
	if !done {
		return
	}
	if err := w.m.limit(p, launch.PodLimits(p)); err != nil {
		w.resizeFailed(p, err)
		return
	}
	w.m.Events.Event(p, "", corev1.EventTypeNormal, "ResizeCompleted",
		resizeMessage(p, "Pod resize completed", z.Generation, ""))
	w.rec.Resize = record.Resize{Pending: z.Pending, PendingGeneration: z.PendingGeneration}
	w.m.retryResizes()
}
