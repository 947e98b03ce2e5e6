package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/probe"
	"github.com/shoal-project/shoal/agent/record"
)

// start brings one container up: image, create, start, hook. A failure is
// shown as the container's waiting reason and tried again.
func (w *worker) start(ctx context.Context, f *launch.Facts, sandbox string, making *atomic.Bool) func() {
	if v := w.m.ensureImages(ctx, f); v != nil {
		return w.startFailed(ctx, f, v, firstBackoff, lastPull)
	}
	if !making.CompareAndSwap(false, true) {
		return nil
	}
	if err := w.m.Volumes.Again(ctx, f.Pod); err != nil {
		return w.createFailed(ctx, f, "CreateContainerError", err)
	}
	config, err := w.m.containerConfig(ctx, f)
	if err != nil {
		return w.createFailed(ctx, f, "CreateContainerConfigError", err)
	}
	sc, err := w.m.sandboxConfig(f.Pod, 0, nil)
	if err != nil {
		return w.createFailed(ctx, f, "CreateContainerConfigError", err)
	}
	if w.m.Permit != nil {
		if err := w.m.Permit(ctx, f.Pod); err != nil {
			return w.createFailed(ctx, f, reasonIsolated, err)
		}
	}
	if err := w.isolate(ctx, f.PodIPs); err != nil {
		return w.createFailed(ctx, f, "NetworkNotReady", err)
	}
	id, err := w.m.Runtime.CreateContainer(ctx, sandbox, config, sc)
	if err != nil {
		return w.createFailed(ctx, f, "CreateContainerError", err)
	}
	if w.m.Created != nil {
		r := config.GetLinux().GetResources()
		w.m.Created(ctx, f.Pod, f.Container, id, launch.Pinned{CPUs: r.GetCpusetCpus(), Mems: r.GetCpusetMems()})
	}
	if w.m.LogsIn != nil {
		w.m.LogsIn(filepath.Join(w.m.Host.LogDir(f.Pod), f.Container.Name))
	}
	w.m.event(f, corev1.EventTypeNormal, "Created", "Container created")
	if err := w.m.Runtime.StartContainer(ctx, id); err != nil {
		return w.createFailed(ctx, f, "RunContainerError", err)
	}
	w.m.event(f, corev1.EventTypeNormal, "Started", "Container started")
	w.m.linkLog(f.Pod, config.LogPath, f.Container.Name, id)
	hooked := f.Container.Lifecycle == nil || f.Container.Lifecycle.PostStart == nil
	begun := func() {
		cr := w.rec.Of(f.Container.Name)
		cr.ID, cr.Fault, cr.Delay, cr.Retry = id, nil, 0, time.Time{}
		cr.Started, cr.Ready, cr.Hooked, cr.Unhealthy, cr.ProbeGrace = false, false, hooked, "", nil
		cr.Again, cr.Failed = false, false
		give(cr, f.Pod, f.Container)
	}
	if hooked {
		return begun
	}
	w.post(begun) // shown as running while its hook goes on
	making.Store(false)
	return w.postStart(ctx, f.Pod, Action{Name: f.Container.Name, ID: id})
}

// isolate has the pod's network policies enforced, by the labels that it has in the end.
func (w *worker) isolate(ctx context.Context, ips []string) error {
	for {
		p := w.desired()
		if w.m.Isolate == nil || p == nil || p.Spec.HostNetwork {
			return nil
		}
		if err := w.m.Isolate(ctx, p, ips); err != nil {
			return err
		}
		if now := w.desired(); now == nil || maps.Equal(now.Labels, p.Labels) {
			return nil
		}
	}
}

func (m *Manager) event(f *launch.Facts, kind, reason, message string) {
	m.Events.Event(f.Pod, f.Container.Name, kind, reason, message)
}

func (w *worker) createFailed(ctx context.Context, f *launch.Facts, reason string, err error) func() {
	msg := grpcMessage(err)
	if ctx.Err() == nil {
		w.m.event(f, corev1.EventTypeWarning, "Failed", "Error: "+msg)
	}
	return w.startFailed(ctx, f, &record.Verdict{Reason: reason, Message: msg}, firstRetry, lastRetry)
}

func (w *worker) startFailed(
	ctx context.Context, f *launch.Facts, v *record.Verdict, first, last time.Duration,
) func() {
	if ctx.Err() != nil {
		return nil
	}
	return func() {
		cr := w.rec.Of(f.Container.Name)
		v.Image = cmp.Or(v.Image, f.Container.Image)
		if cr.Fault != nil && cr.Fault.Image != "" && cr.Fault.Image != v.Image {
			cr.Delay = 0
		}
		if cr.Delay > last {
			cr.Delay = last
		}
		cr.Fault = v
		cr.Delay = min(max(2*cr.Delay, first), last)
		cr.Retry = time.Now().Add(cr.Delay)
	}
}

// grpcMessage is an error without the transport's words around it.
func grpcMessage(err error) string {
	s := err.Error()
	if _, after, ok := strings.Cut(s, "rpc error: code = "); ok {
		if _, desc, ok := strings.Cut(after, " desc = "); ok {
			return desc
		}
	}
	return s
}

// postStart runs the hook of a container that was just started.
func (w *worker) postStart(ctx context.Context, p *corev1.Pod, a Action) func() {
	c := record.FindContainer(p, a.Name)
	if c == nil || c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return func() { w.rec.Of(a.Name).Hooked = true }
	}
	if err := w.m.hook(ctx, p, c, a.ID, c.Lifecycle.PostStart); err != nil && ctx.Err() == nil {
		w.m.Events.Event(p, a.Name, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
		return func() {
			cr := w.rec.Of(a.Name)
			if cr.ID == a.ID {
				cr.Unhealthy = "FailedPostStartHook"
			}
		}
	}
	return func() {
		if cr := w.rec.Of(a.Name); cr.ID == a.ID {
			cr.Hooked = true
		}
	}
}

// withdraw begins to take a pod that ends from where traffic comes from, and returns what is
// closed when that is over: at the latest after half of the grace period. A container that
// is stopped to start again, or with no grace, waits for nothing.
func (w *worker) withdraw(p *corev1.Pod, o *record.Observed, a Action) []<-chan struct{} {
	sb := o.Sandbox()
	if w.m.Withdraw == nil || w.rec.Stopping == nil || a.Grace == 0 || sb == nil {
		return nil
	}
	if w.withdrawn == nil {
		w.withdrawn = make(chan struct{})
		bound := min(w.m.WithdrawTime(p), time.Duration(a.Grace)*time.Second/2)
		go func(done chan<- struct{}) {
			defer close(done)
			ctx, cancel := context.WithTimeout(w.m.ctx, bound)
			defer cancel()
			w.m.Withdraw(ctx, p, sb.ID)
		}(w.withdrawn)
	}
	return []<-chan struct{}{w.withdrawn}
}

// stop ends one container: its preStop hook, what it waits for before it is told, and then
// the signal share the grace period.
func (w *worker) stop(ctx context.Context, p *corev1.Pod, a Action, before []<-chan struct{}) func() {
	w.m.Events.Event(p, a.Name, corev1.EventTypeNormal, "Killing", a.Message)
	grace, began := a.Grace, time.Now()
	over := time.NewTimer(time.Duration(grace) * time.Second)
	defer over.Stop()
	if c := record.FindContainer(p, a.Name); c != nil && c.Lifecycle != nil && c.Lifecycle.PreStop != nil && grace > 0 {
		hooked, end := w.preStop(ctx, p, c, a.ID)
		defer end()
		before = append(before, hooked)
	}
	for _, done := range before {
		select {
		case <-done:
			continue
		case <-over.C:
		case <-ctx.Done():
		}
		break
	}
	if before != nil {
		grace = max(grace-int64(time.Since(began)/time.Second), leastGrace)
	}
	err := w.m.Runtime.StopContainer(ctx, a.ID, grace)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(firstRetry):
	}
	return func() { w.retryLater(w.m.ctx, "stop a container", err) }
}

// preStop runs a container's hook, until end is called: one that takes longer than the
// grace period goes on as long as the container does.
func (w *worker) preStop(
	ctx context.Context, p *corev1.Pod, c *corev1.Container, id string,
) (done <-chan struct{}, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	hooked := make(chan struct{})
	go func() {
		defer close(hooked)
		if err := w.m.hook(ctx, p, c, id, c.Lifecycle.PreStop); err != nil && ctx.Err() == nil {
			w.m.Events.Event(p, c.Name, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
		}
	}()
	return hooked, func() {
		cancel()
		<-hooked
	}
}

// hook runs one lifecycle handler.
func (m *Manager) hook(ctx context.Context, p *corev1.Pod, c *corev1.Container, id string,
	h *corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		_, stderr, err := m.Runtime.ExecSync(ctx, id, h.Exec.Command, 0)
		if err != nil {
			return fmt.Errorf("exec: %w: %s", err, strings.TrimSpace(string(stderr)))
		}
		return nil
	case h.HTTPGet != nil:
		plain, err := probe.Get(ctx, c, h.HTTPGet, m.podIP(p))
		if plain != "" && err == nil {
			m.Events.Event(p, "", corev1.EventTypeWarning, "LifecycleHTTPFallback", fmt.Sprintf(
				"request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", plain))
		}
		return err
	case h.Sleep != nil:
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(h.Sleep.Seconds) * time.Second):
		}
		return nil
	}
	return errors.New("invalid handler: only exec, httpGet and sleep run as hooks")
}

func (m *Manager) podIP(p *corev1.Pod) string {
	if p.Spec.HostNetwork && len(m.Host.IPs) > 0 {
		return m.Host.IPs[0]
	}
	if v, ok := m.View(p.UID); ok {
		if sb := v.Observed.Sandbox(); sb != nil && len(sb.IPs) > 0 {
			return sb.IPs[0]
		}
	}
	return ""
}

// ResyncObjects makes pods look again that wait for a missing object.
func (m *Manager) ResyncObjects(namespace string) {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	for _, w := range workers {
		if p := w.desired(); p != nil && p.Namespace == namespace {
			w.post(func() {
				for _, c := range w.rec.Containers {
					if c.Fault != nil && c.Fault.Reason == "CreateContainerConfigError" {
						c.Retry = time.Time{}
					}
				}
				if w.rec.Fault != nil && w.rec.Fault.Reason == "FailedMount" {
					w.rec.Retry = time.Time{}
				}
			})
		}
	}
}

// reasonIsolated is why a container waits that must not run while the node is isolated.
const reasonIsolated = "Isolated"

// RetryImages has containers that wait for an image look again: one has come, by other ways
// than a pull of theirs.
func (m *Manager) RetryImages() {
	m.RetrySetup("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull")
}

// RetrySetup has pods whose setup failed for one of the reasons, or a container's start, tried
// again at once.
func (m *Manager) RetrySetup(reasons ...string) {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	for _, w := range workers {
		w.post(func() {
			if w.rec.Fault != nil && slices.Contains(reasons, w.rec.Fault.Reason) {
				w.rec.Retry = time.Time{}
			}
			for _, c := range w.rec.Containers {
				if c.Fault != nil && slices.Contains(reasons, c.Fault.Reason) {
					c.Retry = time.Time{}
				}
			}
		})
	}
}
