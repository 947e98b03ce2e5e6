package queue

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// Config sets a queue up.
type Config struct {
	// Less orders the active pods.
	Less func(a, b *framework.QueuedPod) bool
	// PreEnqueue asks the plugins of the pod's profile; the status carries the
	// plugin that holds the pod.
	PreEnqueue func(pod *corev1.Pod) *framework.Status
	// Hints returns the events that a plugin of the pod's profile waits for.
	Hints func(pod *corev1.Pod, plugin string) []framework.EventHint
	// Gated is called, under the queue's lock, when a pod is held by PreEnqueue.
	Gated func(pod *corev1.Pod, why *framework.Status)

	// Incoming, when set, counts the pods that come into a part of the queue, by what
	// brought them.
	Incoming func(part, event string)

	InitialBackoff, MaxBackoff time.Duration // default 1 s and 10 s
	// Leftover is how long a refused pod waits at most without any event that
	// concerns it (default 5 min).
	Leftover time.Duration
}

// The parts of the queue, and what brings pods into them beside events of the
// cluster, as upstream's metrics call them.
const (
	active        = "active"
	backoff       = "backoff"
	unschedulable = "unschedulable"

	podAdd               = "UnschedulablePodAdd"
	attemptFailed        = "ScheduleAttemptFailure"
	backoffComplete      = "BackoffComplete"
	popFromBackoff       = "PopFromBackoffQ"
	unschedulableTimeout = "UnschedulableTimeout"
)

// Queue is the scheduling queue. All methods may be called concurrently, but
// only one pod is out (popped and not done) at a time.
type Queue struct {
	c Config

	mu      sync.Mutex
	active  *pods
	backoff *pods // refused or failed, by the end of the back-off
	parked  map[types.UID]*entry
	// refusedBy counts the parked pods by each plugin that refused them, so that
	// most events find at once that they matter to nobody.
	refusedBy map[string]int
	leftover  time.Time         // no parked pod is due before; zero when none is parked
	out       *entry            // the pod being scheduled
	missed    []framework.Event // what happened meanwhile
	wake      chan struct{}
}

type entry struct {
	*framework.QueuedPod
	ready  time.Time // end of the back-off
	failed bool      // the last attempt ended in an error
	gone   bool      // deleted while being scheduled
}

// New returns an empty queue.
func New(c Config) *Queue {
	if c.InitialBackoff == 0 {
		c.InitialBackoff = time.Second
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = 10 * time.Second
	}
	if c.Leftover == 0 {
		c.Leftover = 5 * time.Minute
	}
	q := &Queue{c: c, parked: map[types.UID]*entry{}, refusedBy: map[string]int{}, wake: make(chan struct{}, 1)}
	q.active = newPods(func(a, b *entry) bool { return c.Less(a.QueuedPod, b.QueuedPod) })
	q.backoff = newPods(func(a, b *entry) bool {
		if !a.ready.Equal(b.ready) {
			return a.ready.Before(b.ready)
		}
		return c.Less(a.QueuedPod, b.QueuedPod)
	})
	return q
}

// Add puts a new pod in.
func (q *Queue) Add(p *framework.PodInfo) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.find(p.UID()) != nil {
		q.update(nil, p)
		return
	}
	q.activate(&entry{QueuedPod: &framework.QueuedPod{PodInfo: p, Timestamp: time.Now()}}, podAdd)
}

// Update replaces a pod; old may be nil. A refused pod comes back when the
// change is an event that a plugin waits for.
func (q *Queue) Update(old *corev1.Pod, p *framework.PodInfo, actions framework.Action) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.update(&framework.Event{Resource: framework.Pod, Action: actions, Old: old, New: p.Pod}, p)
}

// Delete takes a pod out, also the one being scheduled.
func (q *Queue) Delete(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.active.remove(uid) || q.backoff.remove(uid) {
		return
	}
	if e := q.parked[uid]; e != nil {
		q.unpark(e)
	}
	if q.out != nil && q.out.UID() == uid {
		q.out.gone = true
	}
}

// Pop waits for the next pod. It returns nil when ctx ends. Done or Refuse must
// follow before the next Pop.
func (q *Queue) Pop(ctx context.Context) *framework.QueuedPod {
	for {
		e, wait := q.tryPop(time.Now())
		if e != nil {
			return e.QueuedPod
		}
		if !q.sleep(ctx, wait) {
			return nil
		}
	}
}

// TryPop returns the next pod if one is ready.
func (q *Queue) TryPop() *framework.QueuedPod {
	if e, _ := q.tryPop(time.Now()); e != nil {
		return e.QueuedPod
	}
	return nil
}

// Done ends the cycle of a pod that found a node or is of no interest any more.
func (q *Queue) Done(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.out != nil && q.out.UID() == uid {
		q.out, q.missed = nil, nil
	}
}

// Refuse ends the cycle of a pod that found no node, or brings back one whose
// binding failed. The pod's RejectedBy and PendingOn say who refused it; with
// neither the attempt counts as an error.
func (q *Queue) Refuse(p *framework.QueuedPod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := &entry{QueuedPod: p}
	var missed []framework.Event
	if q.out != nil && q.out.UID() == p.UID() {
		missed, e.gone = q.missed, q.out.gone
		q.out, q.missed = nil, nil
	}
	if e.gone || q.find(p.UID()) != nil {
		return
	}
	e.Timestamp = time.Now()
	e.failed = len(p.RejectedBy)+len(p.PendingOn) == 0
	if e.failed {
		e.ConsecutiveErrors++
		e.ready = e.Timestamp.Add(q.delay(e.ConsecutiveErrors))
		q.retry(e, attemptFailed)
		return
	}
	e.ConsecutiveErrors = 0
	e.UnschedulableCount++
	e.ready = e.Timestamp.Add(q.delay(e.UnschedulableCount))
	for i := range missed {
		if q.worth(e, missed[i]) {
			q.retry(e, missed[i].Label())
			return
		}
	}
	q.park(e, attemptFailed)
}

// Move brings back the refused pods that the event may help.
func (q *Queue) Move(ev framework.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.out != nil {
		q.missed = append(q.missed, ev)
	}
	if ev.Resource != framework.AnyResource && !q.anyoneWaits(ev) {
		return
	}
	var back []*entry
	for _, e := range q.parked {
		if q.worth(e, ev) {
			back = append(back, e)
		}
	}
	for _, e := range back {
		q.unpark(e)
		q.retry(e, ev.Label())
	}
}

// Len returns the number of active, backed-off and unschedulable pods.
func (q *Queue) Len() (ready, backedOff, refused int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.active.Len(), q.backoff.Len(), len(q.parked)
}

// Pending says how many pods wait, and for what.
type Pending struct {
	Active, Backoff int
	// Gated pods are held by a PreEnqueue plugin, Unschedulable ones were tried.
	Unschedulable, Gated int
	// RefusedBy counts the parked pods for each plugin that refused them.
	RefusedBy map[Refusal]int
}

// Refusal is a plugin's, of a pod that names a scheduler.
type Refusal struct{ Plugin, SchedulerName string }

// Pending counts the pods that wait.
func (q *Queue) Pending() Pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := Pending{Active: q.active.Len(), Backoff: q.backoff.Len(), RefusedBy: map[Refusal]int{}}
	for _, e := range q.parked {
		if e.GatedBy != "" {
			p.Gated++
		} else {
			p.Unschedulable++
		}
		for plugin := range e.RejectedBy.Union(e.PendingOn) {
			p.RefusedBy[Refusal{plugin, e.Pod.Spec.SchedulerName}]++
		}
	}
	return p
}

// tryPop returns a pod or how long to wait for one (0: until woken).
func (q *Queue) tryPop(now time.Time) (*entry, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flush(now)
	var e *entry
	switch top := q.backoff.peek(); {
	case q.active.Len() > 0:
		e = q.active.pop()
	case top != nil && !top.failed:
		// Nothing else to do: the back-off saves no work. Errors do wait, for
		// they may be a sign of an API server in distress.
		e = q.backoff.pop()
		q.came(active, popFromBackoff)
	default:
		return nil, q.nextDeadline(now)
	}
	e.Attempts++
	q.out, q.missed = e, nil
	return e, 0
}

func (q *Queue) sleep(ctx context.Context, wait time.Duration) bool {
	var after <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		after = t.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-q.wake:
	case <-after:
	}
	return true
}

// flush moves what is due: ended back-offs, and pods parked for too long.
func (q *Queue) flush(now time.Time) {
	for top := q.backoff.peek(); top != nil && !top.ready.After(now); top = q.backoff.peek() {
		q.activate(q.backoff.pop(), backoffComplete)
	}
	if q.leftover.IsZero() || now.Before(q.leftover) {
		return
	}
	q.leftover = time.Time{}
	var due []*entry
	for _, e := range q.parked {
		switch {
		case e.GatedBy != "":
		case now.Sub(e.Timestamp) >= q.c.Leftover:
			due = append(due, e)
		default:
			q.leftoverAt(e.Timestamp.Add(q.c.Leftover))
		}
	}
	for _, e := range due {
		q.unpark(e)
		q.activate(e, unschedulableTimeout)
	}
}

func (q *Queue) leftoverAt(t time.Time) {
	if q.leftover.IsZero() || t.Before(q.leftover) {
		q.leftover = t
	}
}

func (q *Queue) nextDeadline(now time.Time) time.Duration {
	at := q.leftover
	if top := q.backoff.peek(); top != nil && (at.IsZero() || top.ready.Before(at)) {
		at = top.ready
	}
	if at.IsZero() {
		return 0
	}
	return max(at.Sub(now), time.Millisecond)
}

func (q *Queue) update(ev *framework.Event, p *framework.PodInfo) {
	uid := p.UID()
	switch {
	case q.active.get(uid) != nil:
		e := q.active.get(uid)
		e.PodInfo = p
		q.active.put(e)
	case q.backoff.get(uid) != nil:
		e := q.backoff.get(uid)
		e.PodInfo = p
		q.backoff.put(e)
	case q.parked[uid] != nil:
		e := q.parked[uid]
		e.PodInfo = p
		if ev == nil || e.GatedBy != "" && q.c.PreEnqueue(p.Pod).OK() || q.worth(e, *ev) {
			q.unpark(e)
			q.retry(e, label(ev))
		}
	case q.out != nil && q.out.UID() == uid:
		if ev != nil {
			q.missed = append(q.missed, *ev)
		}
	default:
		q.activate(&entry{QueuedPod: &framework.QueuedPod{PodInfo: p, Timestamp: time.Now()}}, label(ev))
	}
}

// label names an event, or the addition that a missing one stands for.
func label(ev *framework.Event) string {
	if ev == nil {
		return podAdd
	}
	return ev.Label()
}

func (q *Queue) came(part, event string) {
	if q.c.Incoming != nil {
		q.c.Incoming(part, event)
	}
}

// retry sends a pod to the active queue, by way of the back-off if it is not over.
func (q *Queue) retry(e *entry, event string) {
	pending := len(e.PendingOn) > 0
	if e.GatedBy != "" || pending || !e.ready.After(time.Now()) {
		q.activate(e, event)
		return
	}
	q.backoff.put(e)
	q.came(backoff, event)
	q.notify()
}

// activate makes a pod ready, unless a PreEnqueue plugin holds it.
func (q *Queue) activate(e *entry, event string) {
	e.GatedBy = ""
	if s := q.c.PreEnqueue(e.Pod); !s.OK() {
		e.GatedBy = s.Plugin
		e.RejectedBy = sets.New(s.Plugin)
		q.park(e, event)
		if q.c.Gated != nil {
			q.c.Gated(e.Pod, s)
		}
		return
	}
	if e.Initial.IsZero() {
		e.Initial = time.Now()
	}
	q.active.put(e)
	q.came(active, event)
	q.notify()
}

func (q *Queue) park(e *entry, event string) {
	q.parked[e.UID()] = e
	q.came(unschedulable, event)
	q.tally(e, 1)
	if e.GatedBy == "" {
		q.leftoverAt(e.Timestamp.Add(q.c.Leftover))
		q.notify() // for the popper to wait no longer than that
	}
}

func (q *Queue) unpark(e *entry) {
	delete(q.parked, e.UID())
	q.tally(e, -1)
}

func (q *Queue) tally(e *entry, by int) {
	for plugin := range e.RejectedBy.Union(e.PendingOn) {
		if q.refusedBy[plugin] += by; q.refusedBy[plugin] == 0 {
			delete(q.refusedBy, plugin)
		}
	}
}

// anyoneWaits is the quick test before all parked pods are looked at. Hints are
// the same for all pods of a plugin, but profiles differ: any parked pod's will do.
func (q *Queue) anyoneWaits(ev framework.Event) bool {
	if len(q.parked) == 0 {
		return false
	}
	for plugin := range q.refusedBy {
		for _, h := range q.c.Hints(nil, plugin) {
			if h.Matches(ev) {
				return true
			}
		}
	}
	return false
}

func (q *Queue) worth(e *entry, ev framework.Event) bool {
	if ev.Resource == framework.AnyResource {
		return e.GatedBy == ""
	}
	for _, set := range []sets.Set[string]{e.PendingOn, e.RejectedBy} {
		for plugin := range set {
			for _, h := range q.c.Hints(e.Pod, plugin) {
				if h.Matches(ev) && (h.Hint == nil || h.Hint(e.Pod, ev) == framework.Queue) {
					return true
				}
			}
		}
	}
	return false
}

func (q *Queue) find(uid types.UID) *entry {
	if e := q.active.get(uid); e != nil {
		return e
	}
	if e := q.backoff.get(uid); e != nil {
		return e
	}
	return q.parked[uid]
}

// delay doubles from InitialBackoff to MaxBackoff.
func (q *Queue) delay(count int) time.Duration {
	d := q.c.InitialBackoff
	for i := 1; i < count && d < q.c.MaxBackoff; i++ {
		d *= 2
	}
	return min(d, q.c.MaxBackoff)
}

func (q *Queue) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
