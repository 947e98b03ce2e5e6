package probe

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Kind is what a probe's verdict is for.
type Kind int

// Kinds of probes.
const (
	Startup Kind = iota
	Liveness
	Readiness
)

func (k Kind) String() string { return [...]string{"Startup", "Liveness", "Readiness"}[k] }

// Target is a running container with the probes that apply to it now.
type Target struct {
	UID       types.UID
	Pod       *corev1.Pod
	Container *corev1.Container
	// ID is the container's ID in the runtime.
	ID      string
	Started time.Time
	IPs     []string
	// Ready is the readiness known so far, so that a restart of the agent
	// does not change it.
	Ready bool

	Startup, Liveness, Readiness *corev1.Probe
}

// Key identifies what would be probed.
func (t *Target) Key() string {
	var b strings.Builder
	b.WriteString(t.ID)
	for _, p := range []*corev1.Probe{t.Startup, t.Liveness, t.Readiness} {
		if p != nil {
			b.WriteByte('1')
		} else {
			b.WriteByte('0')
		}
	}
	return b.String()
}

// Result is a verdict that differs from the one before.
type Result struct {
	UID       types.UID
	Container string
	ID        string
	Kind      Kind
	Good      bool
	// Grace is the probe's own termination grace period, in seconds.
	Grace *int64
}

// Executor runs a command in a container. An exit code is told as an error
// with Exited() and ExitStatus() (k8s.io/utils/exec.ExitError).
type Executor interface {
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error)
}

// Recorder writes events about a container.
type Recorder interface {
	Event(p *corev1.Pod, container, kind, reason, message string)
}

// Manager runs the probes of all pods.
type Manager struct {
	Exec   Executor
	Events Recorder
	// Report takes verdicts; it must not block.
	Report func(Result)

	mu    sync.Mutex
	began time.Time
	ctx   context.Context
	stop  context.CancelFunc
	pods  map[types.UID]map[string]*watch
}

// watch is one probe of one container.
type watch struct {
	m      *Manager
	t      Target
	kind   Kind
	spec   *corev1.Probe
	timer  *time.Timer
	run    int32 // consecutive equal outcomes
	last   bool  // outcome that run counts
	told   bool  // verdict that was last told
	first  bool  // no verdict was told yet (startup, liveness)
	closed bool
	// outcomes are for metrics, under the manager's lock.
	outcomes outcomes
}

// Start makes the manager ready; ctx bounds every probe.
func (m *Manager) Start(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ctx, m.stop = context.WithCancel(ctx)
	m.began = time.Now()
	m.pods = map[types.UID]map[string]*watch{}
}

// Set replaces the targets of a pod. A probe that goes on keeps its count.
func (m *Manager) Set(uid types.UID, targets []Target) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods == nil {
		return
	}
	old := m.pods[uid]
	now := map[string]*watch{}
	for i := range targets {
		t := targets[i]
		for _, p := range []struct {
			kind Kind
			spec *corev1.Probe
		}{{Startup, t.Startup}, {Liveness, t.Liveness}, {Readiness, t.Readiness}} {
			if p.spec == nil {
				continue
			}
			key := t.ID + p.kind.String()
			if w := old[key]; w != nil && !w.closed {
				now[key] = w
				continue
			}
			w := &watch{m: m, t: t, kind: p.kind, spec: p.spec, told: t.Ready, first: p.kind != Readiness}
			now[key] = w
			w.schedule(w.firstIn())
		}
	}
	for key, w := range old {
		if now[key] != w {
			w.close()
		}
	}
	if len(now) == 0 {
		delete(m.pods, uid)
	} else {
		m.pods[uid] = now
	}
}

// A container is settling in the first second of its life: as a kubelet does, which
// hears of its start up to a second later, the agent calls nothing unhealthy
// before. A server that is up sooner is ready sooner.
const (
	settling      = time.Second
	settlingRetry = 250 * time.Millisecond
)

// isSettling tells it by a container's age. Less than none is that of one that started before
// the clock was set back.
func isSettling(age time.Duration) bool { return 0 <= age && age < settling }

// firstIn is how long the first probe waits; the manager's lock is held. Those of
// containers that ran before this agent are spread over their period.
func (w *watch) firstIn() time.Duration {
	delay := time.Duration(w.spec.InitialDelaySeconds) * time.Second
	if w.kind == Liveness {
		delay = max(delay, settling)
	}
	wait := min(delay, max(0, time.Until(w.t.Started.Add(delay)))) // the clock may have been set back
	if w.t.Started.Before(w.m.began) && (w.kind == Liveness || w.kind == Readiness && w.t.Ready) {
		wait = max(wait, rand.N(seconds(w.spec.PeriodSeconds, 10)))
	}
	return wait
}

// close ends a watch; the manager's lock is held.
func (w *watch) close() {
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
}

// schedule arms the timer; the manager's lock is held.
func (w *watch) schedule(d time.Duration) {
	w.timer = time.AfterFunc(max(0, d), w.fire)
}

func (w *watch) fire() {
	w.m.mu.Lock()
	closed, ctx := w.closed || w.m.ctx.Err() != nil, w.m.ctx
	w.m.mu.Unlock()
	if closed {
		return
	}
	began := time.Now()
	good, output, err := w.m.probe(ctx, w)
	took := time.Since(began)
	if ctx.Err() != nil {
		return
	}
	w.m.mu.Lock()
	w.outcomes.count(good, err, took)
	if w.closed {
		w.m.mu.Unlock()
		return
	}
	if !good && isSettling(began.Sub(w.t.Started)) {
		w.schedule(settlingRetry)
		w.m.mu.Unlock()
		return
	}
	var verdict, tell bool
	if err == nil { // else nothing is known
		verdict, tell = w.count(good)
	}
	done := tell && (w.kind == Startup || w.kind == Liveness && !verdict)
	if done {
		w.closed = true
	} else {
		w.schedule(seconds(w.spec.PeriodSeconds, 10) - time.Since(began))
	}
	w.m.mu.Unlock()
	w.events(good, output, err)
	if tell {
		w.m.Report(Result{UID: w.t.UID, Container: w.t.Container.Name, ID: w.t.ID, Kind: w.kind, Good: verdict,
			Grace: w.spec.TerminationGracePeriodSeconds})
	}
}

// count takes one outcome; tell is true when it makes a new verdict.
func (w *watch) count(good bool) (verdict, tell bool) {
	if good == w.last {
		w.run++
	} else {
		w.last, w.run = good, 1
	}
	need := threshold(w.spec.FailureThreshold, 3)
	if good {
		need = threshold(w.spec.SuccessThreshold, 1)
	}
	if w.run < need {
		return false, false
	}
	switch w.kind {
	case Liveness:
		tell = !good // a live container is nothing new
	case Startup:
		tell = w.first || !good
	default:
		tell = good != w.told
	}
	if tell {
		w.told, w.first = good, false
	}
	return good, tell
}

func (w *watch) events(good bool, output string, err error) {
	if good && err == nil {
		if output != "" {
			w.m.Events.Event(w.t.Pod, w.t.Container.Name, corev1.EventTypeWarning, "ProbeWarning",
				w.kind.String()+" probe warning: "+output)
		}
		return
	}
	msg := w.kind.String() + " probe failed: " + output
	if err != nil {
		msg = w.kind.String() + " probe errored and resulted in unknown state: " + err.Error()
	}
	w.m.Events.Event(w.t.Pod, w.t.Container.Name, corev1.EventTypeWarning, "Unhealthy", msg)
}

func threshold(n, dflt int32) int32 {
	if n <= 0 {
		return dflt
	}
	return n
}

func seconds(n, dflt int32) time.Duration {
	return time.Duration(threshold(n, dflt)) * time.Second
}
