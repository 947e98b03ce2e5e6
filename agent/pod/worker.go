package pod

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
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
	pod   *v1.Pod
	// from is the pod's source, heard the one that was heard in this run of the
	// agent.
	from, heard string
	inbox       []func()
	shown       shown

	// Of the goroutine alone.
	rec         *record.Pod
	specified   *v1.Pod // what shown.allocated was made of
	busy        map[string]*job
	timer       *time.Timer
	failure     string // the last that was told
	keepFailing bool   // the record could not be written, which was told
	targets     map[string]string
}

// shown is what the worker's goroutine tells others of its pod.
type shown struct {
	observed *record.Observed
	// released: it has no sandbox, volume or cgroup on the node.
	released bool
	// allocated is the pod with the resources that the node gave it; it may ask
	// for more, and wait for others to end.
	allocated   *v1.Pod
	waitsToGrow bool
}

// job is something long that goes on beside the worker.
type job struct {
	kind   Kind
	grace  int64
	cancel context.CancelFunc
}

func (w *worker) update(p *v1.Pod, source string) {
	w.mu.Lock()
	w.pod, w.from, w.heard = p, source, source
	w.mu.Unlock()
	w.move(claimed)
	w.poke()
}

// refresh takes a version of the pod that asks for nothing new.
func (w *worker) refresh(p *v1.Pod) {
	w.mu.Lock()
	w.pod = p
	w.mu.Unlock()
}

func (w *worker) remove() {
	w.move(disowned)
	w.poke()
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

func (w *worker) heardFrom(source string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.heard == source
}

func (w *worker) desired() *v1.Pod {
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
