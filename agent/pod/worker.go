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

func (w *worker) hold() { w.mu.Lock(); w.held = true; w.mu.Unlock() }

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
