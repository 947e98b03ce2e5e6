package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
	"github.com/shoal-project/shoal/coordinator/scheduler/plugins"
)

const (
	// bindTimeout bounds one pod's PreBind and Bind calls.
	bindTimeout = 30 * time.Second
	// claimsTimeout bounds them where a pod waits for a permit, or a volume is provisioned
	// or a device is made ready meanwhile, and no plugin has more patience.
	claimsTimeout = 10 * time.Minute
)

// binding is a placed pod on its way to the API.
type binding struct {
	profile *Profile
	pod     *framework.QueuedPod
	node    string
	wait    *waiter // set when a Permit plugin said Wait
	begin   time.Time
	long    bool // it waits for a permit, for volumes or for devices
	told    bool // the pod's status names the node
}

// binder carries bindings out, a bounded number at a time, apart from the
// scheduling loop.
type binder struct {
	s    *Scheduler
	jobs chan *binding
	wg   sync.WaitGroup
}

func (b *binder) start(ctx context.Context) {
	// The loop may run ahead by this many pods before it waits for bindings.
	b.jobs = make(chan *binding, 4096)
	for range b.s.c.Binders {
		b.wg.Go(func() {
			for j := range b.jobs {
				j.run(ctx, b.s)
			}
		})
	}
}

func (b *binder) submit(ctx context.Context, j *binding) {
	if j.long = j.takesLong(); j.long {
		// A pod that waits, for a permit, for its volumes or for devices, must not
		// hold up one of the binders.
		b.wg.Go(func() { j.run(ctx, b.s) })
		return
	}
	b.jobs <- j
}

// stop waits for what was submitted; after the end of ctx those not begun are dropped.
func (b *binder) stop() {
	b.s.waiting.rejectAll()
	close(b.jobs)
	b.wg.Wait()
}

// reserveAndPermit runs the extension points that precede the binding cycle;
// judged is what the plugins found out about the pod.
func (j *binding) reserveAndPermit(ctx context.Context, s *Scheduler, judged *class) *framework.Status {
	if st := j.reserve(ctx, judged); !st.OK() {
		return st
	}
	begin := time.Now()
	st := j.permit(ctx, s)
	timed("Permit", j.profile, begin, st)
	return st
}

func (j *binding) reserve(ctx context.Context, judged *class) (st *framework.Status) {
	begin := time.Now()
	defer func() { timed("Reserve", j.profile, begin, st) }()
	for _, pl := range j.profile.reserve {
		if st := pl.Reserve(ctx, j.pod.PodInfo, j.node, judged.filterOf(pl.Name())); !st.OK() {
			return st.By(pl.Name())
		}
	}
	return nil
}

func (j *binding) permit(ctx context.Context, s *Scheduler) *framework.Status {
	var longest time.Duration
	pending := map[string]bool{}
	for _, pl := range j.profile.permit {
		st, timeout := pl.Permit(ctx, j.pod.PodInfo, j.node)
		switch {
		case st.OK():
		case st.Is(framework.Wait):
			pending[pl.Name()] = true
			longest = max(longest, timeout)
		default:
			return st.By(pl.Name())
		}
	}
	if len(pending) == 0 {
		return nil
	}
	j.wait = s.waiting.add(j.pod.UID(), pending, longest)
	return framework.NewStatus(framework.Wait)
}

// run is the binding cycle. A binding that has begun is not cut off by ctx, unless
// it may wait for minutes: who schedules next sees what of it is written.
func (j *binding) run(ctx context.Context, s *Scheduler) {
	defer works("binding")()
	if ctx.Err() != nil {
		j.undo(ctx, s)
		return
	}
	whole, limit := context.WithoutCancel(ctx), bindTimeout
	if j.long {
		limit = j.profile.patience()
	} else {
		ctx = whole
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s.status.drop(j.pod.UID())
	if j.long {
		j.nominate(ctx, s, j.node)
	}
	st := j.await(s)
	switch {
	case st.OK() && j.long:
		st = j.preBindUnlessPreempted(ctx, s)
	case st.OK():
		st = j.preBind(ctx)
	}
	if st.OK() {
		st = j.bind(ctx, s.placer.extenders)
	}
	if !st.OK() {
		undo, cancel := context.WithTimeout(whole, bindTimeout)
		defer cancel()
		j.fail(undo, s, st)
		return
	}
	pod := j.pod.Pod
	s.recorder[j.profile.Name].Eventf(pod, nil, corev1.EventTypeNormal, "Scheduled", "Binding",
		"Successfully assigned %v/%v to %v", pod.Namespace, pod.Name, j.node)
	begin := time.Now()
	for _, pl := range j.profile.postBind {
		pl.PostBind(ctx, j.pod.PodInfo, j.node)
	}
	timed("PostBind", j.profile, begin, nil)
	scheduled(j.pod, j.profile.Name, j.begin)
}

// takesLong tells whether the pod waits for a permit, for volumes or for devices.
func (j *binding) takesLong() bool {
	return j.wait != nil || slices.ContainsFunc(j.profile.preBind, func(pl framework.PreBindPlugin) bool {
		p, ok := pl.(framework.PreFlightPlugin)
		return ok && p.PreFlight(j.pod.PodInfo)
	})
}

// nominate has the pod's status tell where it is going to be (KEP-5278), so that nobody takes
// the node for unused, and whoever schedules next goes on with it. The binding takes it back.
func (j *binding) nominate(ctx context.Context, s *Scheduler, node string) {
	name := any(node)
	if node == "" {
		name = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": j.pod.UID()},
		"status": map[string]any{"nominatedNodeName": name}})
	if err == nil {
		_, err = s.c.Client.CoreV1().Pods(j.pod.Pod.Namespace).Patch(ctx, j.pod.Pod.Name,
			types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if j.told = node != ""; err != nil && !apierrors.IsNotFound(err) {
		s.log.Warn("the pod's status does not tell its node", "pod", j.pod.Pod.Namespace+"/"+j.pod.Pod.Name, "err", err)
	}
}

// await is the wait for Permit plugins, if there is one.
func (j *binding) await(s *Scheduler) *framework.Status {
	if j.wait == nil {
		return nil
	}
	begin := time.Now()
	st := s.waiting.await(j.wait)
	permitWait.WithLabelValues(st.CodeName()).Observe(time.Since(begin).Seconds())
	return st
}

// preBindUnlessPreempted is preBind, which ends when the pod has to give way: it is not
// running yet, and need not be deleted.
func (j *binding) preBindUnlessPreempted(ctx context.Context, s *Scheduler) *framework.Status {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.waiting.preBinds(j.pod.UID(), cancel)
	st := j.preBind(ctx)
	if !s.waiting.preBound(j.pod.UID()) {
		return framework.AsStatus(context.Cause(ctx))
	}
	return st
}

func (j *binding) preBind(ctx context.Context) (st *framework.Status) {
	begin := time.Now()
	defer func() { timed("PreBind", j.profile, begin, st) }()
	for _, pl := range j.profile.preBind {
		if st := failed("PreBind", pl, pl.PreBind(ctx, j.pod.PodInfo, j.node)); !st.OK() {
			return st
		}
	}
	return nil
}

func (j *binding) bind(ctx context.Context, others *extenders) (st *framework.Status) {
	begin := time.Now()
	defer func() { timed("Bind", j.profile, begin, st) }()
	if taken, err := others.bind(ctx, j.pod.Pod, j.node); err != nil {
		return framework.AsStatus(fmt.Errorf("extender: %w", err))
	} else if taken {
		return nil
	}
	for _, pl := range j.profile.bind {
		if st := pl.Bind(ctx, j.pod.PodInfo, j.node); !st.Is(framework.Skip) {
			return failed("Bind", pl, st)
		}
	}
	return framework.NewStatus(framework.Error, "no bind plugin took the pod")
}

// failed says of an error where it came from.
func failed(point string, pl framework.Plugin, st *framework.Status) *framework.Status {
	if st.Is(framework.Error) && st.Err != nil {
		return framework.AsStatus(fmt.Errorf("running %s plugin %q: %w", point, pl.Name(), st.Err)).By(pl.Name())
	}
	return st.By(pl.Name())
}

// fail forgets the assumption and sends the pod back. A pod that is gone is not tried again.
func (j *binding) fail(ctx context.Context, s *Scheduler, st *framework.Status) {
	j.undo(ctx, s)
	if apierrors.IsNotFound(st.Err) {
		return
	}
	if j.told { // what refuse compares with may not show it yet
		j.nominate(ctx, s, "")
	}
	err := s.statusError(st)
	s.refuse(ctx, j.profile, j.pod, err, &framework.Nomination{}) // the node was no good
	failedAttempt(j.profile, j.begin, err)
}

// undo takes back what reserveAndPermit and the assumption did.
func (j *binding) undo(ctx context.Context, s *Scheduler) {
	s.waiting.reject(j.pod.UID())
	for i := len(j.profile.reserve) - 1; i >= 0; i-- {
		j.profile.reserve[i].Unreserve(ctx, j.pod.PodInfo, j.node)
	}
	s.cache.forget(j.pod.UID())
	gone := j.pod.Pod.DeepCopy()
	gone.Spec.NodeName = j.node
	s.queue.Move(framework.Event{Resource: framework.Pod, Action: framework.Delete, Old: gone})
}

// waiting holds the pods whose Permit plugins asked to wait, and those that wait in PreBind.
type waiting struct {
	mu      sync.Mutex
	pods    map[types.UID]*waiter
	binding map[types.UID]context.CancelCauseFunc
}

type waiter struct {
	uid     types.UID
	pending map[string]bool
	timeout time.Duration
	done    chan *framework.Status
}

func newWaiting() *waiting {
	return &waiting{pods: map[types.UID]*waiter{}, binding: map[types.UID]context.CancelCauseFunc{}}
}

// preBinds takes how the PreBind of a pod is ended.
func (w *waiting) preBinds(uid types.UID, end context.CancelCauseFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.binding[uid] = end
}

// preBound tells, when PreBind is over, whether nobody has ended it; from then on nobody can.
func (w *waiting) preBound(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, there := w.binding[uid]
	delete(w.binding, uid)
	return there
}

var errPreempted = errors.New("preempted by " + plugins.DefaultPreemptionName)

func (w *waiting) add(uid types.UID, pending map[string]bool, timeout time.Duration) *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := &waiter{uid: uid, pending: pending, timeout: timeout, done: make(chan *framework.Status, 1)}
	w.pods[uid] = x
	return x
}

// allow lets the pod pass a Permit plugin; the last one frees it.
func (w *waiting) allow(uid types.UID, plugin string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.pods[uid]
	if x == nil {
		return
	}
	if delete(x.pending, plugin); len(x.pending) == 0 {
		w.end(x, nil)
	}
}

// reject ends the wait of a pod that is gone.
func (w *waiting) reject(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.pods[uid]; x != nil {
		w.end(x, framework.NewStatus(framework.Unschedulable, "rejected while waiting on permit"))
	}
}

// preempt rejects a waiting pod in favour of another; it reports whether it waited.
func (w *waiting) preempt(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if end := w.binding[uid]; end != nil {
		delete(w.binding, uid)
		end(errPreempted)
		return true
	}
	x := w.pods[uid]
	if x != nil {
		w.end(x, framework.NewStatus(framework.Unschedulable, "preempted"))
	}
	return x != nil
}

func (w *waiting) rejectAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.pods {
		w.end(x, framework.NewStatus(framework.Unschedulable, "scheduler is shutting down"))
	}
}

func (w *waiting) end(x *waiter, st *framework.Status) {
	delete(w.pods, x.uid)
	x.done <- st
}

// await returns the outcome of the wait; nil for a pod that need not wait.
func (w *waiting) await(x *waiter) *framework.Status {
	if x == nil {
		return nil
	}
	t := time.NewTimer(x.timeout)
	defer t.Stop()
	select {
	case st := <-x.done:
		return st
	case <-t.C:
		w.mu.Lock()
		delete(w.pods, x.uid)
		w.mu.Unlock()
		return framework.NewStatus(framework.Unschedulable, "timed out waiting on permit")
	}
}
