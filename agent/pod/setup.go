package pod

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/quota"
	"github.com/shoal-project/shoal/agent/record"
)

// setup ensures the steps, in order.
func (w *worker) setup(ctx context.Context, s *Setting) func() {
	for _, step := range w.m.Steps {
		if step.Ensure == nil {
			continue
		}
		if err := step.Ensure(ctx, s); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return func() { w.setupFailed(s.Pod, step.Name, err) }
		}
	}
	return func() {
		w.rec.Fault, w.rec.Delay, w.rec.Retry = nil, 0, time.Time{}
		w.rec.Released = false
		w.rec.SandboxAttempts = s.Attempt + 1
	}
}

// Pauses between tries of a pod's setup and of a container's start.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 20 * time.Second
	lastPull   = 5 * time.Minute
)

func (w *worker) setupFailed(p *corev1.Pod, step string, err error) {
	v := record.Verdict{Reason: "FailedSync", Message: step + ": " + err.Error()}
	var f *Fault
	if errors.As(err, &f) {
		v = record.Verdict{Reason: f.Reason, Message: f.Message}
	}
	w.m.Events.Event(p, "", corev1.EventTypeWarning, v.Reason, v.Message)
	if f != nil && f.Rejects && w.rec.Ended == nil {
		w.rec.Ended = &record.Verdict{Phase: corev1.PodFailed, Reason: v.Reason,
			Message: "Pod was rejected: " + v.Message}
		return
	}
	w.rec.Fault = &v
	w.rec.Delay = min(max(2*w.rec.Delay, firstRetry), lastRetry)
	w.rec.Retry = time.Now().Add(w.rec.Delay)
}

// release undoes the steps, last first; all are tried.
func (w *worker) release(ctx context.Context, s *Setting) func() {
	var errs []error
	for i := len(w.m.Steps) - 1; i >= 0; i-- {
		if f := w.m.Steps[i].Release; f != nil {
			if err := f(ctx, s); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		select {
		case <-ctx.Done():
		case <-time.After(firstRetry):
		}
		return func() {
			w.m.Events.Event(s.Pod, "", corev1.EventTypeWarning, "FailedKillPod", "error killing pod: "+err.Error())
			w.retryLater(w.m.ctx, "release the pod", err)
		}
	}
	return func() {
		w.rec.Released = true
		w.m.retryForRoom()
	}
}

// finish deletes the API object. The source tells when it is gone.
func (w *worker) finish(ctx context.Context, p *corev1.Pod) func() {
	err := w.m.Reporter.Finish(ctx, p)
	if ctx.Err() != nil {
		return nil // its source does not have it any more, or the agent ends
	}
	if err != nil {
		return func() { w.retryLater(w.m.ctx, "delete the pod", err) }
	}
	return func() { w.remove() }
}

// forget removes the last traces: sandboxes with their containers, logs, the
// pod's directory and its record.
func (w *worker) forget(ctx context.Context, p *corev1.Pod, o *record.Observed) func() {
	if err := w.m.purge(ctx, p, o); err != nil {
		return func() { w.retryLater(w.m.ctx, "remove the pod", err) }
	}
	return func() {
		w.wake(time.Time{})
		w.m.Probes.Set(w.uid, nil)
		w.m.Reporter.Forget(w.uid)
		if err := w.m.Records.Delete(string(w.uid)); err != nil {
			w.m.Log.Warn("pod record is not removed", "pod", w.uid, "err", err)
		}
		w.m.drop(w)
	}
}

// EnsureSandbox is the step that makes the pod's sandbox, with its network.
func (m *Manager) EnsureSandbox(ctx context.Context, s *Setting) error {
	if s.Sandbox != "" {
		// The dead one gives its addresses and cgroup back first.
		if err := m.Runtime.StopPodSandbox(ctx, s.Sandbox); err != nil {
			return &Fault{Reason: "FailedKillPod", Message: "error killing pod: " + err.Error()}
		}
	}
	config, err := m.sandboxConfig(s.Pod, s.Attempt, func(reason, message string) {
		m.Events.Event(s.Pod, "", corev1.EventTypeWarning, reason, message)
	})
	if err == nil {
		err = m.makeLogDir(s.Pod, "")
	}
	handler := ""
	if c := s.Pod.Spec.RuntimeClassName; err == nil && c != nil && *c != "" {
		handler, err = m.Handler(ctx, *c)
	}
	if err == nil {
		_, err = m.Runtime.RunPodSandbox(ctx, config, handler)
	}
	if err != nil {
		return &Fault{Reason: "FailedCreatePodSandBox", Message: "Failed to create pod sandbox: " + grpcMessage(err)}
	}
	return nil
}

// ReleaseSandbox stops every sandbox of the pod; its logs and ended containers
// stay until the pod is forgotten.
func (m *Manager) ReleaseSandbox(ctx context.Context, s *Setting) error {
	labels := map[string]string{launch.LabelPodUID: string(s.Pod.UID)}
	list, err := m.Runtime.ListPodSandbox(ctx, &criv1.PodSandboxFilter{LabelSelector: labels})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	var errs []error
	for _, sb := range list {
		if sb.State == criv1.PodSandboxState_SANDBOX_READY || sb.Id == s.Sandbox {
			errs = append(errs, m.Runtime.StopPodSandbox(ctx, sb.Id))
		}
	}
	return errors.Join(errs...)
}

// purge removes what the pod left in the runtime and on the disk.
func (m *Manager) purge(ctx context.Context, p *corev1.Pod, o *record.Observed) error {
	var errs []error
	for i := range o.Containers {
		c := &o.Containers[i]
		m.unlinkLog(p, c.Name, c.ID)
	}
	for i := range o.Sandboxes {
		errs = append(errs, m.Runtime.RemovePodSandbox(ctx, o.Sandboxes[i].ID))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if p.Name != "" {
		keep := m.KeepLogs
		if keep == nil {
			keep = quota.RemoveTree
		}
		errs = append(errs, keep(m.Host.LogDir(p)))
	}
	dir := m.Host.Dir(p)
	for _, e := range []string{"etc-hosts", "containers", "userns", "userns.tmp"} {
		errs = append(errs, beneath.RemoveAll(filepath.Join(dir, e)))
	}
	for _, e := range []string{"volumes", "volumeDevices", "plugins", ""} {
		// Not RemoveAll: something may still be mounted there.
		if err := os.Remove(filepath.Join(dir, e)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
