package pod

import (
	"cmp"
	"context"
	"maps"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// pass is one look at the pod.
func (w *worker) pass(ctx context.Context, p *corev1.Pod, at phase) {
	w.relabelled(ctx, p)
	p = w.allocate(p)
	w.rec.Pod = p
	now := time.Now()
	operation := w.operation(p, at)
	defer func() { w.m.Passes.Since(now, operation) }()
	if w.m.Spans != nil {
		var end func()
		ctx, end = w.m.Spans.Pass(ctx, p, operation)
		defer end()
	}
	o, err := w.m.observe(ctx, w.uid)
	if err != nil {
		w.retryLater(ctx, "look at the runtime", err)
		return
	}
	w.m.lastWords(p, w.rec, o)
	busy := w.busyNames()
	if !w.recall(p, o) && !at.unwanted() {
		return // until the API is heard, or is known to be away
	}
	Absorb(p, w.rec, o, busy)
	if w.rec.Ended == nil && w.rec.Admitted.IsZero() && !at.unwanted() && p.DeletionTimestamp == nil {
		if !w.admit(p, now) {
			return // until others are gone
		}
	}
	w.stopping(p, at.unwanted(), now)
	w.restartAll(p, o)
	w.resizeDone(p, o, now)
	in := Input{
		Pod:        p,
		Record:     w.rec,
		Observed:   o,
		Removed:    at.unwanted(),
		Claimed:    w.claimant() != "",
		Busy:       busy,
		Waiting:    w.waiting(),
		MaxBackoff: w.m.MaxBackoff,
		Now:        now,
	}
	surplus, next := w.m.surplus(w.uid, in)
	in.Surplus = surplus
	plan := Decide(in)
	if !next.IsZero() {
		plan.wake(next)
	}
	again := false
	for _, a := range plan.Actions {
		again = w.act(ctx, p, o, a) || again
	}
	w.finishPass(p, o, at, plan)
	if again {
		w.poke()
	}
}

// recall takes from the API what the node does not know of the pod, and tells whether
// it could.
func (w *worker) recall(p *corev1.Pod, o *record.Observed) bool {
	if w.rec.Source != SourceAPI {
		return w.recalled || w.recallMirror(p, o)
	}
	if !w.recorded {
		Recall(p, w.rec, o)
		w.recorded = true
	}
	if w.rec.Ended == nil {
		w.rec.Ended = overInAPI(p)
	}
	return true
}

// recallMirror takes from its mirror what the node does not know of a pod of a
// manifest. One that always restarts is never over: it does not wait for the API.
func (w *worker) recallMirror(p *corev1.Pod, o *record.Observed) bool {
	known := w.recorded || w.rec.Source != SourceFile || w.m.Mirror == nil || w.m.isForgotten(w.uid) ||
		p.Spec.RestartPolicy == corev1.RestartPolicyAlways || len(o.Containers) > 0
	if known {
		w.recalled = true
		return true
	}
	mirror, heard := w.m.Mirror(p)
	if !heard {
		return false
	}
	w.recalled = true
	if mirror != nil && mirror.DeletionTimestamp == nil && mirror.Annotations[mirrorOf] == string(p.UID) {
		told := *p
		told.Status = mirror.Status
		Recall(&told, w.rec, o)
		w.rec.Ended = overInAPI(&told)
	}
	return true
}

// mirrorOf is the annotation of a mirror with the UID of its pod, which is made of the
// manifest.
const mirrorOf = corev1.MirrorPodAnnotationKey

// operation is what metrics call the pass.
func (w *worker) operation(p *corev1.Pod, at phase) string {
	switch {
	case at.unwanted() || p.DeletionTimestamp != nil:
		return "kill"
	case w.rec.Admitted.IsZero():
		return "create"
	}
	return "sync"
}

// relabelled lets downward API volumes follow the pod's own object.
func (w *worker) relabelled(ctx context.Context, p *corev1.Pod) {
	old := w.rec.Pod
	if old == nil || w.m.Relabelled == nil ||
		maps.Equal(old.Labels, p.Labels) && maps.Equal(old.Annotations, p.Annotations) {
		return
	}
	if err := w.m.Relabelled(ctx, p); err != nil && ctx.Err() == nil {
		w.m.Log.Warn("volumes do not show the pod's new labels", "pod", p.Namespace+"/"+p.Name, "err", err)
	}
}

// finishPass keeps and tells what the pass found.
func (w *worker) finishPass(p *corev1.Pod, o *record.Observed, at phase, plan Plan) {
	w.mu.Lock()
	room := w.rec.Released && !w.shown.released
	w.shown.observed, w.shown.ended, w.shown.released = o, w.rec.Ended != nil, w.rec.Released
	w.mu.Unlock()
	if room {
		w.m.retryForRoom()
	}
	w.rec.Back = w.rec.Source == SourceFile && at == wanted && w.rec.Stopping != nil && w.rec.Ended == nil
	if !at.unclaimed() {
		// Kept with its status: after a restart transitions are told from it.
		kept := *p
		kept.Status = w.m.Reporter.Report(p, w.rec, o)
		w.rec.Pod = &kept
		w.showStatus(&kept.Status)
		if w.starting && kept.Status.Phase == corev1.PodRunning {
			w.starting = false
			w.m.Starts.Since(w.rec.Admitted.Time)
		}
		if !w.keep(p) {
			if again := time.Now().Add(keepAgain); plan.Wake.IsZero() || plan.Wake.After(again) {
				plan.Wake = again
			}
		}
		w.probes(p, o)
	}
	if !w.retry.IsZero() { // an action failed
		plan.wake(w.retry)
		w.retry = time.Time{}
	}
	w.wake(plan.Wake)
	if w.m.Changed != nil {
		w.m.Changed()
	}
}

// showStatus lets others see the status of a pod that the API's version does not tell.
func (w *worker) showStatus(s *corev1.PodStatus) {
	if w.rec.Source != SourceFile {
		return
	}
	w.mu.Lock()
	w.shown.status = s
	w.mu.Unlock()
}

// keepAgain is when a record that could not be written is tried again: nothing
// tells that a full disk has space.
const keepAgain = 10 * time.Second

// keep writes the record and tells whether it did; a failure is told once.
func (w *worker) keep(p *corev1.Pod) bool {
	err := w.m.Records.Put(string(w.uid), w.rec)
	if err != nil && !w.keepFailing {
		w.m.Log.Warn("pod record is not kept, trying on; a restart would lose back-off and readiness",
			"pod", p.Namespace+"/"+p.Name, "err", err)
	}
	w.keepFailing = err != nil
	return err == nil
}

func (w *worker) wake(at time.Time) {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	if !at.IsZero() {
		w.timer = time.AfterFunc(max(0, time.Until(at)), w.poke)
	}
}

func (w *worker) retryLater(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	if w.failure != err.Error() {
		w.failure = err.Error()
		w.m.Log.Warn("cannot "+what+", trying again", "pod", w.uid, "err", err)
	}
	w.retry = time.Now().Add(time.Second)
	w.wake(w.retry)
}

// stopping begins or hastens the pod's end.
func (w *worker) stopping(p *corev1.Pod, removed bool, now time.Time) {
	before := w.rec.Stopping
	w.rec.Stopping = stopping(p, w.rec, removed, now)
	if w.rec.Stopping != nil && before != w.rec.Stopping {
		w.quicken(before)
	}
}

// quicken ends what a pod that ends does not need any more, and asks again to stop
// containers that had more grace before.
func (w *worker) quicken(before *record.Stopping) {
	for _, j := range w.busy {
		switch j.kind {
		case Start, Setup, Hook, Resize:
			j.cancel()
		case Stop:
			if before != nil {
				j.cancel()
			}
		}
	}
}

func (w *worker) busyNames() map[string]bool {
	if len(w.busy) == 0 {
		return nil
	}
	out := make(map[string]bool, len(w.busy))
	for k := range w.busy {
		out[k] = true
	}
	return out
}

// waiting are the IDs of containers that wait for their turn to be stopped.
func (w *worker) waiting() map[string]bool {
	var out map[string]bool
	for id, j := range w.busy {
		if j.turn == nil {
			continue
		}
		if out == nil {
			out = map[string]bool{}
		}
		out[id] = true
	}
	return out
}

// act carries out one action; true asks for another pass at once.
func (w *worker) act(ctx context.Context, p *corev1.Pod, o *record.Observed, a Action) bool {
	switch a.Kind {
	case Setup:
		if a.ID != "" && w.rec.Fault == nil {
			w.m.Events.Event(p, "", corev1.EventTypeNormal, "SandboxChanged",
				"Pod sandbox changed, it will be killed and re-created.")
		}
		s := &Setting{Pod: p, Sandbox: a.ID, Attempt: a.Attempt, Manifest: w.rec.Source == SourceFile}
		w.begin(ctx, "", a, func(ctx context.Context) func() { return w.setup(ctx, s) })
	case Start:
		cr := w.rec.Of(a.Name)
		if a.Backoff != cr.Backoff || a.Ended {
			cr.Backoff, cr.BackoffAt = a.Backoff, time.Now()
		}
		f, making := w.facts(p, o, a), new(atomic.Bool)
		w.begin(ctx, a.Name, a, func(ctx context.Context) func() { return w.start(ctx, f, o.Sandbox().ID, making) })
		if j := w.busy[a.Name]; j.making == nil {
			j.making = making
		}
	case Hook:
		w.begin(ctx, a.Name, a, func(ctx context.Context) func() { return w.postStart(ctx, p, a) })
	case Resize:
		z := w.resizing(p, o)
		w.begin(ctx, "", a, func(ctx context.Context) func() { return w.actuate(ctx, z) })
	case Stop:
		if a.Again {
			cr := w.rec.Of(a.Name)
			cr.Again, cr.Backoff = true, 0 // no failure: it starts again at once
		}
		if a.Failed {
			w.rec.Of(a.Name).Failed = true
		}
		var turn chan struct{}
		if a.Wait {
			turn = make(chan struct{})
		}
		before := w.withdraw(p, o, a)
		if turn != nil {
			before = append(before, turn)
		}
		w.begin(ctx, a.ID, a, func(ctx context.Context) func() { return w.stop(ctx, p, a, before) })
		if j := w.busy[a.ID]; a.Wait && j.kind == Stop {
			j.turn = turn
		}
	case Proceed:
		if j := w.busy[a.ID]; j != nil && j.turn != nil {
			close(j.turn)
			j.turn = nil
		}
	case Remove:
		newest := o.Latest(a.Name)
		if newest.ID == a.ID && newest.State == record.Exited && !w.keep(p) && !evicted(w.rec) {
			// Only the runtime knows for sure how it ended. A pod that was evicted has failed
			// in any case, and may itself be why the disk is full.
			return false
		}
		if err := w.m.Runtime.RemoveContainer(ctx, a.ID); err != nil {
			w.retryLater(ctx, "remove a container", err)
			return false
		}
		if a.Again {
			w.m.keepLog(p, a)
		} else {
			w.m.removeLog(p, a)
		}
		return true
	case RemoveSandbox:
		if err := w.m.Runtime.RemovePodSandbox(ctx, a.ID); err != nil {
			w.retryLater(ctx, "remove a sandbox", err)
			return false
		}
		return true
	case Hold:
		w.holdContainer(p, a)
	case End:
		v := a.Verdict
		w.rec.Ended = &v
		w.m.Events.Event(p, "", corev1.EventTypeNormal, v.Reason, v.Message)
		return true
	case Release:
		s := &Setting{Pod: p}
		if sb := o.Sandbox(); sb != nil {
			s.Sandbox = sb.ID
		}
		w.begin(ctx, "", a, func(ctx context.Context) func() { return w.release(ctx, s) })
	case Finish:
		w.begin(ctx, "", a, func(ctx context.Context) func() { return w.finish(ctx, p) })
	case Forget:
		w.begin(ctx, "", a, func(ctx context.Context) func() { return w.forget(ctx, p, o) })
	}
	return false
}

// begin runs a job beside the worker; what it returns runs in the worker.
func (w *worker) begin(ctx context.Context, key string, a Action, run func(context.Context) func()) {
	if w.busy[key] != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	j := &job{kind: a.Kind, grace: a.Grace, cancel: cancel}
	w.busy[key] = j
	w.m.wg.Go(func() {
		after := w.m.spanned(ctx, a, run)
		cancel()
		w.post(func() {
			if w.busy[key] == j {
				delete(w.busy, key)
			}
			if after != nil {
				after()
			}
		})
	})
}

// spanned runs a job and tells of it.
func (m *Manager) spanned(ctx context.Context, a Action, run func(context.Context) func()) func() {
	if m.Spans == nil {
		return run(ctx)
	}
	ctx, end := m.Spans.Job(ctx, a.Kind.String(), a.Name)
	defer end()
	return run(ctx)
}

func (w *worker) holdContainer(p *corev1.Pod, a Action) {
	v := a.Verdict
	cr := w.rec.Of(a.Name)
	first := cr.Fault == nil || cr.Fault.Reason != v.Reason
	cr.Fault = &v
	if !first {
		return
	}
	switch v.Reason {
	case "CrashLoopBackOff":
		w.m.Events.Event(p, a.Name, corev1.EventTypeWarning, "BackOff",
			"Back-off restarting failed container "+a.Name+" in pod "+fullName(p))
	case "ImagePullBackOff":
		if c := record.FindContainer(p, a.Name); c != nil {
			w.m.Events.Event(p, a.Name, corev1.EventTypeNormal, "BackOff",
				"Back-off pulling image "+strconv.Quote(cmp.Or(v.Image, c.Image)))
			w.m.Events.Event(p, a.Name, corev1.EventTypeWarning, "Failed", "Error: ImagePullBackOff")
		}
	}
}
