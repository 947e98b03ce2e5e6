package pod

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/record"
)

// worker runs one pod. Its goroutine exists only while there is something to
// do; each pass takes in what jobs found, looks at the runtime and acts on
// Decide.
type worker struct {
	m   *Manager
	uid types.UID

	mu    sync.Mutex
	phase phase
	turn  turn
	pod   *corev1.Pod
	// from is the pod's source, lastSource the one that was heard in this run of the
	// agent.
	from, lastSource string
	inbox            []func()
	shown            shown

	// Of the goroutine alone.
	rec       *record.Pod
	recorded  bool        // rec tells of all that was: it was kept, or recalled
	recalled  bool        // what the API has of the pod of a manifest was looked at
	specified *corev1.Pod // what shown.allocated was made of
	busy      map[string]*job
	// withdrawn is closed when the containers of a pod that ends may be told; nil until
	// the first of them is to be.
	withdrawn   chan struct{}
	timer       *time.Timer
	retry       time.Time // when to look again for what failed; zero: it did not
	failure     string    // the last that was told
	keepFailing bool      // the record could not be written, which was told
	targets     map[string]string
	// starting since it was admitted by this agent, until it runs.
	starting bool
}

// shown is what the worker's goroutine tells others of its pod.
type shown struct {
	observed *record.Observed
	// ended: it is over, or will be when its containers have ended.
	ended bool
	// released: it has no sandbox, volume or cgroup on the node.
	released bool
	// allocated is the pod with the resources that the node gave it; it may ask
	// for more, and wait for others to end.
	allocated   *corev1.Pod
	waitsToGrow bool
	// waitsToStart until those are gone that end for it.
	waitsToStart bool
	waitsSince   time.Time
	// status is the last that was told of a pod of a manifest.
	status *corev1.PodStatus
}

// job is something long that goes on beside the worker.
type job struct {
	kind   Kind
	grace  int64
	cancel context.CancelFunc
	// turn is closed when a container that is to be stopped need not wait for others;
	// nil: it does not.
	turn chan struct{}
	// making is what the start of a container sets that has the image and goes on to make
	// it, or who has all restart: then it is not made.
	making *atomic.Bool
}

// update takes the pod as its source has it; false when nothing is left of the
// worker.
func (w *worker) update(p *corev1.Pod, source string) bool {
	w.mu.Lock()
	if w.phase == gone {
		w.mu.Unlock()
		return false
	}
	w.pod, w.from, w.lastSource = p, source, source
	w.phase = w.phase.after(claimed)
	w.mu.Unlock()
	w.poke()
	return true
}

// refresh takes a version of the pod that asks for nothing new.
func (w *worker) refresh(p *corev1.Pod) {
	w.mu.Lock()
	w.pod = p
	w.mu.Unlock()
}

func (w *worker) remove() {
	w.move(disowned)
	// Also if its source has it again before anybody looks: it begins anew.
	w.post(func() {
		if j := w.busy[""]; j != nil && j.kind == Finish {
			j.cancel() // nobody is left who could be told
		}
		if p := w.desired(); p != nil {
			w.stopping(p, true, time.Now())
		}
	})
}

// letRun lets a pod run that is held.
func (w *worker) letRun() {
	w.move(letRun)
	w.poke()
}

func (w *worker) move(c change) {
	w.mu.Lock()
	w.phase = w.phase.after(c)
	w.mu.Unlock()
}

func (w *worker) at() phase {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.phase
}

func (w *worker) source() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.from
}

// claimant is the source that was heard in this run of the agent to have the pod,
// and has it still; "" for none.
func (w *worker) claimant() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.claimantLocked()
}

func (w *worker) claimantLocked() string {
	if w.phase != wanted {
		return ""
	}
	return w.lastSource
}

func (w *worker) desired() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

func (w *worker) view() View {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.shown.observed
	if o == nil {
		o = &record.Observed{}
	}
	return View{Pod: w.pod, Observed: o, Ended: w.shown.released}
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
	switch {
	case w.turn != idle:
		w.turn = again
	case !w.phase.waits() && w.m.ctx.Err() == nil:
		w.turn = again
		w.m.wg.Go(w.loop)
	}
}

func (w *worker) loop() {
	for {
		w.mu.Lock()
		if w.turn != again || w.phase.waits() || w.m.ctx.Err() != nil {
			w.turn = idle
			w.mu.Unlock()
			return
		}
		w.turn = looking
		inbox := w.inbox
		w.inbox = nil
		w.mu.Unlock()
		for _, f := range inbox {
			f()
		}
		w.mu.Lock()
		p, from, phase := w.pod, w.from, w.phase
		w.mu.Unlock()
		if phase == gone {
			continue
		}
		if from != "" {
			w.rec.Source = from
		}
		w.pass(w.m.ctx, p, phase)
	}
}
