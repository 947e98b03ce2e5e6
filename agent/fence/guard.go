package fence

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/fence/keeper"
)

// Guard is the agent's side: whether the node holds its pods of the policy stop, which
// of them may start, and that they are stopped when it does not hold them any more.
type Guard struct {
	Directory keeper.Directory
	// Target is what there is to stop of a pod.
	Target func(*corev1.Pod) keeper.Target
	// Keep starts a keeper and returns when it has taken its place.
	Keep func(context.Context) error
	// Confirm tells by an error that the API does not have this pod any more, or wants it
	// to end. It asks the API, no cache.
	Confirm func(context.Context, *corev1.Pod) error
	// Changed is told when pods may start that could not.
	Changed func()
	// Node is this node's name. Voters are the other nodes that may prolong the hold when no
	// coordinator does, asked by Ask; known is false while nobody can tell. Nil: there are
	// none.
	Node   string
	Voters func() (names []string, known bool)
	Ask    Ask
	Log    *slog.Logger

	// renewing: a renewal's answer, an expiry and their killing are one after the other.
	renewing sync.Mutex
	mu       sync.Mutex
	deadline time.Duration
	// term counts the times that the node began to hold. A pod starts in a term when the
	// API has confirmed it in that term.
	term    uint64
	pods    map[types.UID]*guarded
	raised  string // the fence that the last answer showed
	stopped string // the fence that all pods were stopped by
	failed  bool   // pods were not stopped that must be
	// lists are all that may stand on the Lease: that of the last answered renewal, and one
	// that was sent since. Most of each must vouch for the node; of an empty one nobody can.
	lists   [][]string
	asked   time.Duration // when voters were asked last
	asking  bool
	vouched bool // the hold is by their word
	renew   chan struct{}
	moved   chan struct{}
}

type guarded struct {
	target    keeper.Target
	confirmed uint64 // the term
}

// ErrNotHeld: the node has no hold on its pods now.
var ErrNotHeld = errors.New("the node is isolated, or was replaced: neither may it run this pod, " +
	"nor is it known that nobody else does")

// Open takes over what an agent of before guarded. Pods whose time is over are stopped
// before it returns.
func (g *Guard) Open() error {
	g.pods, g.term = map[types.UID]*guarded{}, 1
	g.renew, g.moved = make(chan struct{}, 1), make(chan struct{}, 1)
	if err := g.Directory.Make(); err != nil {
		return fmt.Errorf("fence: %w", err)
	}
	targets, err := g.Directory.Targets()
	if err != nil {
		return fmt.Errorf("fence: %w", err)
	}
	for uid, t := range targets {
		g.pods[types.UID(uid)] = &guarded{target: t}
	}
	if g.deadline, err = g.Directory.Deadline(); err != nil {
		g.Log.Warn("the deadline of the node's pods cannot be read, so it counts as past", "err", err)
		g.deadline = 0
	}
	if g.lists, err = g.Directory.Voters(); err != nil {
		g.Log.Warn("who may vouch for this node cannot be read: nobody does until a coordinator answers", "err", err)
		g.lists = nil
	}
	if keeper.Clock() >= g.deadline {
		g.deadline = 0
		return g.stop()
	}
	return nil
}

// Permit lets a pod start now, or tells why not. For pods of other policies it does
// nothing.
func (g *Guard) Permit(ctx context.Context, pod *corev1.Pod) error {
	if PolicyOf(pod) != Stop {
		return nil
	}
	if err := g.register(pod); err != nil {
		return fmt.Errorf("register the pod to be stopped in time: %w", err)
	}
	if err := g.keep(ctx); err != nil {
		return err
	}
	g.mu.Lock()
	term, held := g.term, g.held()
	p := g.pods[pod.UID]
	confirmed := p != nil && p.confirmed == term
	g.mu.Unlock()
	switch {
	case !held:
		poke(g.renew)
		return ErrNotHeld
	case confirmed:
		return nil
	}
	if err := g.Confirm(ctx, pod); err != nil {
		return fmt.Errorf("%w (%w)", ErrNotHeld, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p = g.pods[pod.UID]
	if p == nil || g.term != term || !g.held() {
		return ErrNotHeld
	}
	p.confirmed = term
	return nil
}

// Check is Permit for one who must not wait: a container's process exists, in the pod's
// control group, and is about to run its program. From here on the keeper would find it.
func (g *Guard) Check(pod types.UID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.pods[pod]; p != nil && (p.confirmed != g.term || !g.held()) {
		return ErrNotHeld
	}
	return nil
}

// Adopt guards a pod that an agent of before may have started.
func (g *Guard) Adopt(pod *corev1.Pod) error {
	if PolicyOf(pod) != Stop {
		return nil
	}
	return g.register(pod)
}

// Release forgets a pod of which nothing runs any more.
func (g *Guard) Release(pod types.UID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pods[pod] == nil {
		return nil
	}
	if err := g.Directory.Drop(string(pod)); err != nil {
		return err
	}
	delete(g.pods, pod)
	return nil
}

// held: the caller holds g.mu.
func (g *Guard) held() bool { return g.raised == "" && keeper.Clock() < g.deadline }

// Held tells whether the node holds its pods now.
func (g *Guard) Held() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held()
}

// Active tells whether there are pods to hold. Without any nothing is renewed for them.
func (g *Guard) Active() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.pods) > 0
}

func (g *Guard) register(pod *corev1.Pod) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pods[pod.UID] != nil {
		return nil
	}
	t := g.Target(pod)
	if err := g.Directory.Put(string(pod.UID), t); err != nil {
		return err
	}
	if len(g.pods) == 0 && keeper.Clock() >= g.deadline {
		g.deadline = 0 // it ended unnoticed, with nothing to stop
	}
	g.pods[pod.UID] = &guarded{target: t}
	poke(g.renew) // from now on others have to know, and it is renewed more often
	poke(g.moved)
	return nil
}

// keep makes sure that a keeper lives.
func (g *Guard) keep(ctx context.Context) error {
	kept, err := g.Directory.Kept()
	if err == nil && !kept {
		err = g.Keep(ctx)
	}
	if err != nil {
		return fmt.Errorf("nobody would stop the pod if the agent could not: %w", err)
	}
	return nil
}

// Now is the clock that renewals are timed by.
func (g *Guard) Now() time.Duration { return keeper.Clock() }

// Renew holds a token when the Lease should be renewed now.
func (g *Guard) Renew() <-chan struct{} { return g.renew }

// Period is how often the Lease is to be renewed, 0 when nothing depends on it.
func (g *Guard) Period() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.pods) == 0 && g.raised == g.stopped {
		return 0
	}
	return Length / 4
}

// Mark says on a Lease that is about to be written what the guard has to say. It is made
// when created is set.
func (g *Guard) Mark(l *coordinationv1.Lease, created bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if created {
		set(l, Raised, "made-by-agent-"+rand.Text())
	}
	notCovered(l)
	if len(g.pods) > 0 || l.Annotations[Raised] != "" { // under a fence it tells that this agent heeds it
		// An agent of another version may have held for longer.
		SetCovered(l, max(Length, g.deadline-keeper.Clock()), g.choose()...)
	}
	if raised := l.Annotations[Raised]; raised != "" && raised == g.stopped {
		set(l, Stopped, raised)
	} else {
		delete(l.Annotations, Stopped)
	}
}

// Answered takes the answer to a renewal that began at started. It returns when pods are
// stopped that must be.
func (g *Guard) Answered(ctx context.Context, started time.Duration, l *coordinationv1.Lease) {
	g.renewing.Lock()
	defer g.renewing.Unlock()
	if raised := l.Annotations[Raised]; raised != "" {
		g.fenced(raised)
		return
	}
	g.mu.Lock()
	past := g.raised != "" || keeper.Clock() >= g.deadline
	g.mu.Unlock()
	g.confirm(l)
	if CoveredFor(l) == 0 {
		g.unfenced() // nobody would know that pods are stopped in time, nor replace them
		return
	}
	if err := g.keep(ctx); err != nil {
		g.Log.Warn("the node's hold on its pods is not renewed", "err", err)
		return
	}
	if past && g.stop() != nil { // what should have ended at the deadline must have, before it may start again
		return
	}
	g.hold(started+Length, past)
}

// unfenced notes that there is no fence.
func (g *Guard) unfenced() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.raised, g.stopped = "", ""
}

// hold moves the deadline. The keeper's comes first: it may be later than the agent's,
// never earlier by mistake, and both are what the coordinator reckons with.
func (g *Guard) hold(until time.Duration, anew bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !anew {
		until = max(until, g.deadline) // others' word may be newer than an answer that was slow
	}
	if err := g.Directory.SetDeadline(until); err != nil {
		g.Log.Warn("the deadline of the node's pods cannot be written, so it stays", "err", err)
		return
	}
	g.deadline, g.raised, g.stopped, g.vouched = until, "", "", false
	poke(g.moved)
	if anew {
		g.term++
		go g.Changed()
	}
}

// fenced stops all pods by a fence, and has that told.
func (g *Guard) fenced(raised string) {
	g.mu.Lock()
	done := g.stopped == raised
	tell := g.raised != raised && len(g.pods) > 0
	g.raised, g.deadline = raised, 0
	err := g.Directory.SetDeadline(0)
	g.mu.Unlock()
	if done {
		return
	}
	if tell {
		g.Log.Warn("the cluster replaces pods of this node: those that must not run twice are stopped", "fence", raised)
	}
	if err != nil {
		g.Log.Warn("the deadline of the node's pods cannot be written", "err", err)
	}
	if g.stop() != nil || err != nil {
		return // the next answer shows the fence again
	}
	g.mu.Lock()
	g.stopped = raised
	g.mu.Unlock()
	poke(g.renew)
}

// stop ends what runs of all pods, and the term: none of them starts by what was
// confirmed before.
func (g *Guard) stop() error {
	g.mu.Lock()
	g.term++
	targets := map[string]keeper.Target{}
	for uid, p := range g.pods {
		targets[string(uid)] = p.target
	}
	g.mu.Unlock()
	err := keeper.Stop(targets)
	g.mu.Lock()
	before := g.failed
	g.failed = err != nil
	g.mu.Unlock()
	switch {
	case err != nil && !before:
		g.Log.Error("pods are not stopped that must be, trying on", "err", err)
		poke(g.moved)
	case err == nil && before:
		g.Log.Info("the pods are stopped now")
	}
	return err
}

// tryAgain is how long after a stopping that failed the next begins.
const tryAgain = time.Second

// Run stops pods when their time is over, until ctx ends. Without any it sleeps.
func (g *Guard) Run(ctx context.Context) error {
	var asking sync.WaitGroup
	defer asking.Wait()
	for ctx.Err() == nil {
		at, ok := g.next()
		if !ok {
			select {
			case <-ctx.Done():
			case <-g.moved:
			}
			continue
		}
		if err := keeper.SleepUntil(ctx, at, g.moved); err != nil {
			return err
		}
		if ctx.Err() == nil {
			g.expire()
			g.askOthers(ctx, &asking)
		}
	}
	return nil
}

// next is when there is something to stop or others are to be asked, if ever.
func (g *Guard) next() (at time.Duration, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed {
		return keeper.Clock() + tryAgain, true
	}
	at, ok = g.deadline, len(g.pods) > 0 && g.deadline != 0
	if ok && g.mayAsk() {
		at = min(at, g.askAt())
	}
	return at, ok
}

// expire stops what is to be stopped now.
func (g *Guard) expire() {
	g.renewing.Lock()
	defer g.renewing.Unlock()
	g.mu.Lock()
	past := len(g.pods) > 0 && g.deadline != 0 && keeper.Clock() >= g.deadline
	if past {
		g.deadline = 0
	}
	failed := g.failed
	g.mu.Unlock()
	if past {
		g.Log.Warn("the node is isolated: pods that must not outlive that are stopped")
	}
	if past || failed {
		_ = g.stop() // told, and tried again
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
