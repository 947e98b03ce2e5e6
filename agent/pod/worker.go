package pod

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/probe"
	"github.com/shoal-project/shoal/agent/record"
)

// worker runs one pod. Its goroutine exists only while there is something to
// do; each pass takes in what jobs found, looks at the runtime and acts on
// Decide.
type worker struct {
	m      *Manager
	uid    types.UID
	orphan bool

	mu      sync.Mutex
	pod     *v1.Pod
	from    string
	heard   bool // from its source, in this run of the agent
	removed bool
	held    bool
	dirty   bool
	active  bool
	inbox   []func()
	timer   *time.Timer
	seen    *record.Observed
	over    bool // nothing of it is left on the node
	// given is the pod with the resources that are allocated to it; deferred
	// is set while it asks for others.
	given    *v1.Pod
	deferred bool

	// Of the goroutine alone.
	rec       *record.Pod
	wish      *v1.Pod // what given was made of
	busy      map[string]*job
	failed    string
	unkept    bool // the record's last writing failed
	targets   map[string]string
	forgotten bool
}

// job is something long that goes on beside the worker.
type job struct {
	kind   Kind
	grace  int64
	cancel context.CancelFunc
}

func (w *worker) update(p *v1.Pod, source string) {
	w.mu.Lock()
	w.pod, w.from, w.heard, w.held, w.removed, w.orphan = p, source, true, false, false, false
	w.mu.Unlock()
	w.poke()
}

// refresh takes a version of the pod that asks for nothing new.
func (w *worker) refresh(p *v1.Pod) {
	w.mu.Lock()
	w.pod = p
	w.mu.Unlock()
}

func (w *worker) remove() {
	w.mu.Lock()
	w.removed, w.held = true, false
	w.mu.Unlock()
	w.poke()
}

func (w *worker) hold()   { w.mu.Lock(); w.held = true; w.mu.Unlock() }
func (w *worker) unhold() { w.mu.Lock(); w.held = false; w.mu.Unlock(); w.poke() }

func (w *worker) source() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.from
}

func (w *worker) heardFrom(source string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.heard && w.from == source
}

func (w *worker) desired() *v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

func (w *worker) view() View {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.seen
	if o == nil {
		o = &record.Observed{}
	}
	return View{Pod: w.pod, Observed: o, Ended: w.over}
}

// post hands a change of the record to the worker's goroutine.
func (w *worker) post(f func()) {
	w.mu.Lock()
	w.inbox = append(w.inbox, f)
	w.mu.Unlock()
	w.poke()
}

// poke makes the worker look again; it starts its goroutine when none runs.
func (w *worker) poke() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dirty = true
	if w.active || w.held || w.m.ctx.Err() != nil {
		return
	}
	w.active = true
	w.m.wg.Go(w.loop)
}

func (w *worker) loop() {
	for {
		w.mu.Lock()
		if !w.dirty || w.held || w.forgotten || w.m.ctx.Err() != nil {
			w.active = false
			w.mu.Unlock()
			return
		}
		w.dirty = false
		inbox := w.inbox
		w.inbox = nil
		w.mu.Unlock()
		for _, f := range inbox {
			f()
		}
		w.mu.Lock()
		p, removed, from, over := w.pod, w.removed, w.from, w.forgotten
		w.mu.Unlock()
		if over {
			continue
		}
		if from != "" {
			w.rec.Source = from
		}
		w.pass(w.m.ctx, p, removed)
	}
}

// pass is one look at the pod.
func (w *worker) pass(ctx context.Context, p *v1.Pod, removed bool) {
	w.relabelled(ctx, p)
	p = w.allocate(p)
	w.rec.Pod = p
	now := time.Now()
	o, err := w.m.observe(ctx, w.uid)
	if err != nil {
		w.retryLater(ctx, "look at the runtime", err)
		return
	}
	w.m.lastWords(p, w.rec, o)
	busy := w.busyNames()
	Absorb(p, w.rec, o, busy)
	if w.rec.Admitted.IsZero() && !removed && p.DeletionTimestamp == nil {
		w.admit(p, now)
	}
	w.stopping(p, removed, now)
	w.resizeDone(p, o, now)
	plan := Decide(Input{Pod: p, Record: w.rec, Observed: o, Removed: removed, Busy: busy,
		MaxBackoff: w.m.MaxBackoff, Now: now})
	again := false
	for _, a := range plan.Actions {
		again = w.act(ctx, p, o, a) || again
	}
	w.finishPass(p, o, plan)
	if again {
		w.poke()
	}
}

// relabelled lets downward API volumes follow the pod's own object.
func (w *worker) relabelled(ctx context.Context, p *v1.Pod) {
	old := w.rec.Pod
	if old == nil || w.m.Relabelled == nil || maps.Equal(old.Labels, p.Labels) && maps.Equal(old.Annotations, p.Annotations) {
		return
	}
	if err := w.m.Relabelled(ctx, p); err != nil && ctx.Err() == nil {
		w.m.Log.Warn("volumes do not show the pod's new labels", "pod", p.Namespace+"/"+p.Name, "error", err)
	}
}

// finishPass keeps and tells what the pass found.
func (w *worker) finishPass(p *v1.Pod, o *record.Observed, plan Plan) {
	w.mu.Lock()
	w.seen, w.over = o, w.rec.Released
	w.mu.Unlock()
	if w.forgotten {
		return
	}
	if !w.orphan {
		// Kept with its status: after a restart transitions are told from it.
		kept := *p
		kept.Status = w.m.Reporter.Report(p, w.rec, o)
		w.rec.Pod = &kept
		if !w.keep(p) {
			if again := time.Now().Add(keepAgain); plan.Wake.IsZero() || plan.Wake.After(again) {
				plan.Wake = again
			}
		}
		w.probes(p, o)
	}
	w.wake(plan.Wake)
	if w.m.Changed != nil {
		w.m.Changed()
	}
}

// keepAgain is when a record that could not be written is tried again: nothing
// tells that a full disk has space.
const keepAgain = 10 * time.Second

// keep writes the record and tells whether it did; a failure is told once.
func (w *worker) keep(p *v1.Pod) bool {
	err := w.m.Records.Put(string(w.uid), w.rec)
	if err != nil && !w.unkept {
		w.m.Log.Warn("pod record is not kept, trying on; a restart would lose back-off and readiness", "pod", p.Namespace+"/"+p.Name, "error", err)
	}
	w.unkept = err != nil
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
	if w.failed != err.Error() {
		w.failed = err.Error()
		w.m.Log.Warn("cannot "+what+", trying again", "pod", w.uid, "error", err)
	}
	w.wake(time.Now().Add(time.Second))
}

// admit decides once whether the node takes the pod.
func (w *worker) admit(p *v1.Pod, now time.Time) {
	w.rec.Admitted = metav1.NewTime(now)
	if len(w.rec.Containers) > 0 || w.rec.Source == SourceFile {
		return // it ran here before: the record was lost, not the right to run
	}
	var node *v1.Node
	if w.m.Node != nil {
		node = w.m.Node()
	}
	v := w.m.Sysctls.Admit(p)
	if v == nil && w.m.Refuse != nil {
		v = w.m.Refuse()
	}
	if v == nil {
		v = Admit(p, w.m.others(p, true), node, w.m.Host.Allocatable)
	}
	if v != nil {
		w.rec.Ended = &record.Verdict{Phase: v1.PodFailed, Reason: v.Reason, Message: "Pod was rejected: " + v.Message}
		w.rec.Released = true
		w.m.Events.Event(p, "", v1.EventTypeWarning, v.Reason, v.Message)
	}
}

// others are the active pods beside p; only older ones when p is new, for they
// have the right of way.
func (m *Manager) others(p *v1.Pod, older bool) []*v1.Pod {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	var out []*v1.Pod
	for _, w := range workers {
		w.mu.Lock()
		q := w.pod
		given := w.given
		gone := w.removed || w.orphan
		w.mu.Unlock()
		if q == nil || q.UID == p.UID || gone || over(q) {
			continue
		}
		if older && q.CreationTimestamp.After(p.CreationTimestamp.Time) {
			continue
		}
		if given != nil {
			q = given
		}
		out = append(out, q)
	}
	return out
}

// stopping begins or hastens the pod's end.
func (w *worker) stopping(p *v1.Pod, removed bool, now time.Time) {
	before := w.rec.Stopping
	w.rec.Stopping = stopping(p, w.rec, removed, now)
	if w.rec.Stopping == nil || before == w.rec.Stopping {
		return
	}
	for key, j := range w.busy {
		switch {
		case j.kind == Start || j.kind == Setup || j.kind == Hook || j.kind == Resize:
			j.cancel()
		case j.kind == Stop && before != nil:
			j.cancel() // asked again with less grace
			_ = key
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

// act carries out one action; true asks for another pass at once.
func (w *worker) act(ctx context.Context, p *v1.Pod, o *record.Observed, a Action) bool {
	switch a.Kind {
	case Setup:
		if a.ID != "" && w.rec.Fault == nil {
			w.m.Events.Event(p, "", v1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
		}
		s := &Setting{Pod: p, Sandbox: a.ID, Attempt: a.Attempt}
		w.begin(ctx, "", a, func(ctx context.Context) func() { return w.setup(ctx, s) })
	case Start:
		cr := w.rec.Of(a.Name)
		if a.Backoff != cr.Backoff {
			cr.Backoff, cr.BackoffAt = a.Backoff, time.Now()
		}
		f := w.facts(p, o, a)
		w.begin(ctx, a.Name, a, func(ctx context.Context) func() { return w.start(ctx, f, o.Sandbox().ID) })
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
		w.begin(ctx, a.ID, a, func(ctx context.Context) func() { return w.stop(ctx, p, o, a) })
	case Remove:
		if err := w.m.Runtime.RemoveContainer(ctx, a.ID); err != nil {
			w.retryLater(ctx, "remove a container", err)
			return false
		}
		w.m.removeLog(p, a)
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
		w.m.Events.Event(p, "", v1.EventTypeNormal, v.Reason, v.Message)
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
		after := run(ctx)
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

func (w *worker) holdContainer(p *v1.Pod, a Action) {
	v := a.Verdict
	cr := w.rec.Of(a.Name)
	first := cr.Fault == nil || cr.Fault.Reason != v.Reason
	cr.Fault = &v
	if !first {
		return
	}
	switch v.Reason {
	case "CrashLoopBackOff":
		w.m.Events.Event(p, a.Name, v1.EventTypeWarning, "BackOff", "Back-off restarting failed container "+a.Name+" in pod "+fullName(p))
	case "ImagePullBackOff":
		if c := record.FindContainer(p, a.Name); c != nil {
			w.m.Events.Event(p, a.Name, v1.EventTypeNormal, "BackOff", "Back-off pulling image "+strconv.Quote(c.Image))
			w.m.Events.Event(p, a.Name, v1.EventTypeWarning, "Failed", "Error: ImagePullBackOff")
		}
	}
}

// probed takes a probe's verdict.
func (w *worker) probed(r probe.Result) {
	cr := w.rec.Get(r.Container)
	if cr.ID != r.ID {
		return
	}
	c := w.rec.Of(r.Container)
	switch r.Kind {
	case probe.Readiness:
		c.Ready = r.Good
	case probe.Startup:
		if r.Good {
			c.Started = true
		} else {
			c.Unhealthy, c.ProbeGrace = "Container "+r.Container+" failed startup probe", r.Grace
		}
	case probe.Liveness:
		if !r.Good {
			c.Unhealthy, c.ProbeGrace = "Container "+r.Container+" failed liveness probe", r.Grace
		}
	}
}

// probes tells the prober what to watch: running containers whose hooks are
// done; only readiness counts while the pod ends.
func (w *worker) probes(p *v1.Pod, o *record.Observed) {
	var targets []probe.Target
	now := map[string]string{}
	record.EachContainer(p, func(c *v1.Container) {
		ob := o.Latest(c.Name)
		cr := w.rec.Get(c.Name)
		if ob == nil || ob.State != record.Running || cr.ID != ob.ID || !cr.Hooked {
			return
		}
		t := probe.Target{UID: w.uid, Pod: p, Container: c, ID: ob.ID, Started: ob.Started, IPs: w.rec.IPs, Ready: cr.Ready}
		if p.Spec.HostNetwork && len(w.m.Host.IPs) > 0 {
			t.IPs = w.m.Host.IPs
		}
		if w.rec.Stopping == nil && c.StartupProbe != nil && !cr.Started {
			t.Startup = c.StartupProbe
		}
		if w.rec.Stopping == nil && cr.Started {
			t.Liveness = c.LivenessProbe
		}
		if cr.Started {
			t.Readiness = c.ReadinessProbe
		}
		if t.Startup != nil || t.Liveness != nil || t.Readiness != nil {
			targets = append(targets, t)
			now[c.Name] = t.Key()
		}
	})
	if sameTargets(w.targets, now) {
		return
	}
	w.targets = now
	w.m.Probes.Set(w.uid, targets)
}

func sameTargets(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

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

func (w *worker) setupFailed(p *v1.Pod, step string, err error) {
	v := record.Verdict{Reason: "FailedSync", Message: step + ": " + err.Error()}
	var f *Fault
	if errors.As(err, &f) {
		v = record.Verdict{Reason: f.Reason, Message: f.Message}
	}
	w.m.Events.Event(p, "", v1.EventTypeWarning, v.Reason, v.Message)
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
			w.m.Events.Event(s.Pod, "", v1.EventTypeWarning, "FailedKillPod", "error killing pod: "+err.Error())
			w.retryLater(w.m.ctx, "release the pod", err)
		}
	}
	return func() {
		w.rec.Released = true
		w.m.retryResizes()
	}
}

// finish deletes the API object. The source tells when it is gone.
func (w *worker) finish(ctx context.Context, p *v1.Pod) func() {
	if err := w.m.Reporter.Finish(ctx, p); err != nil {
		return func() { w.retryLater(w.m.ctx, "delete the pod", err) }
	}
	return func() { w.remove() }
}

// forget removes the last traces: sandboxes with their containers, logs, the
// pod's directory and its record.
func (w *worker) forget(ctx context.Context, p *v1.Pod, o *record.Observed) func() {
	if err := w.m.purge(ctx, p, o); err != nil {
		return func() { w.retryLater(w.m.ctx, "remove the pod", err) }
	}
	return func() {
		w.mu.Lock()
		w.forgotten = true
		w.mu.Unlock()
		w.wake(time.Time{})
		w.m.Probes.Set(w.uid, nil)
		w.m.Reporter.Forget(w.uid)
		if err := w.m.Records.Delete(string(w.uid)); err != nil {
			w.m.Log.Warn("pod record is not removed", "pod", w.uid, "error", err)
		}
		w.m.drop(w.uid)
	}
}
