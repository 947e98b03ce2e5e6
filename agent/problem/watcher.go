package problem

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/process"
)

const (
	// taskEvery is how often hung tasks are looked at, while there are some: the kernel
	// does not tell that one goes on.
	taskEvery = 30 * time.Second
	// lookAfter is how much later than an event the mounts are looked at: the kernel
	// speaks of a file system before it makes it read-only, and events come in bursts.
	lookAfter = time.Second
	// eventEvery is how often one reason is an event: a disk that dies fails thousands
	// of requests.
	eventEvery = time.Minute
)

// Machine is what the watcher asks and hears of the machine; ThisOne is the real one.
type Machine struct {
	KernelLog    func(ctx context.Context, take func(host.KernelLine), caught func()) error
	Mounts       func(paths []string) (map[string]host.Mount, error)
	WatchMounts  func(ctx context.Context) (<-chan struct{}, error)
	Task         func(id int) (host.Task, error)
	Clocks       func() host.Instant
	WatchClock   func(ctx context.Context, set func()) error
	Synchronized func() bool
}

// ThisOne is the machine that the process runs on.
func ThisOne() Machine {
	return Machine{KernelLog: host.FollowKernelLog, Mounts: host.MountsOf, WatchMounts: host.WatchMounts,
		Task: host.ReadTask, Clocks: host.Now, WatchClock: process.WatchClock, Synchronized: host.Synchronized}
}

// Watcher finds the machine's problems.
type Watcher struct {
	Machine Machine
	// Paths are directories that the node must be able to write.
	Paths []string
	// Event writes a warning event of the Node; Changed hears that Conditions differ.
	Event   func(reason, message string)
	Changed func()
	// Set hears by how much somebody set the clock: a second or more, negative for back.
	Set func(step time.Duration)
	Log *slog.Logger

	clock clock

	mu    sync.Mutex
	shown []corev1.NodeCondition // of kernel and file systems, as far as they are known

	// What follows is Run's alone.
	deadlock deadlock
	caught   bool                  // the kernel's log is read up to now
	mounts   map[string]host.Mount // nil before the first look
	lookDue  time.Time             // zero: no look is due
	told     map[string]*toldEvent
}

// toldEvent is when a reason was an event last, and how many more lines there were since.
type toldEvent struct {
	at   time.Time
	more int
}

// Conditions are those that are known, each True or False.
func (w *Watcher) Conditions() []corev1.NodeCondition {
	w.clock.kept(w.Machine.Synchronized(), time.Now())
	w.mu.Lock()
	out := slices.Clone(w.shown)
	w.mu.Unlock()
	if reason, message, known := w.clock.state(time.Now()); known {
		out = append(out, condition(ClockProblem, reason, message))
	}
	return out
}

// Dated takes what an authenticated coordinator said the time is, between the moments
// by this machine's clock at which it was asked and had answered.
func (w *Watcher) Dated(date, sent, received time.Time) {
	if w.clock.heard(date, sent, received) {
		w.Changed()
	}
}

// Run follows the machine until ctx ends. What cannot be followed is told in the log and
// left out.
func (w *Watcher) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.deadlock.readBy = w.Machine.Task
	w.told = map[string]*toldEvent{}

	lines, caught := make(chan host.KernelLine), make(chan struct{})
	wg.Go(func() { w.followKernel(ctx, lines, caught) })
	wg.Go(func() { w.followClock(ctx) })
	// A disk that answers nothing holds up who looks at it, and nobody else.
	asked, looked := make(chan struct{}), make(chan map[string]host.Mount)
	wg.Go(func() { w.lookAtMounts(ctx, asked, looked) })

	var remounted <-chan struct{} // only while a file system is read-only
	stopWatch := func() {}
	defer func() { stopWatch() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	w.lookDue = time.Now()
	looking := false
	for {
		ask := asked
		if now := time.Now(); looking || w.lookDue.IsZero() || w.lookDue.After(now) {
			ask = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case l := <-lines:
			w.line(l)
		case <-caught:
			w.caught, caught = true, nil
		case ask <- struct{}{}:
			looking, w.lookDue = true, time.Time{}
		case m := <-looked:
			looking, w.mounts = false, m
			bad := hasReadOnly(m)
			switch {
			case bad && remounted == nil:
				remounted, stopWatch = w.watchMounts(ctx)
			case !bad:
				stopWatch()
				remounted, stopWatch = nil, func() {}
			}
		case <-remounted:
			w.lookSoon()
		case <-timer.C:
			w.deadlock.look(time.Now())
		}
		w.publish()
		w.rearm(timer, looking)
	}
}

func hasReadOnly(m map[string]host.Mount) bool {
	reason, _ := readOnly(m)
	return reason != ""
}

// rearm sets the timer to what is due next.
func (w *Watcher) rearm(timer *time.Timer, looking bool) {
	next := w.deadlock.next()
	if !looking && !w.lookDue.IsZero() && (next.IsZero() || w.lookDue.Before(next)) {
		next = w.lookDue
	}
	if next.IsZero() {
		timer.Stop()
		return
	}
	timer.Reset(max(0, time.Until(next)))
}

func (w *Watcher) lookSoon() {
	if w.lookDue.IsZero() {
		w.lookDue = time.Now().Add(lookAfter)
	}
}

func (w *Watcher) followKernel(ctx context.Context, lines chan<- host.KernelLine, caught chan<- struct{}) {
	err := w.Machine.KernelLog(ctx, func(l host.KernelLine) {
		if classify(l.Text).kind == nothing {
			return
		}
		select {
		case lines <- l:
		case <-ctx.Done():
		}
	}, func() {
		select {
		case caught <- struct{}{}:
		case <-ctx.Done():
		}
	})
	if err != nil && ctx.Err() == nil {
		w.Log.Info("problems that the kernel tells of are not seen: its log cannot be read", "err", err)
	}
}

func (w *Watcher) followClock(ctx context.Context) {
	w.clock.set(w.Machine.Clocks())
	err := w.Machine.WatchClock(ctx, func() {
		step := w.clock.set(w.Machine.Clocks())
		if step == 0 {
			return
		}
		w.Event("ClockSet", fmt.Sprintf("the clock was set %v %s", step.Abs().Round(time.Millisecond),
			direction(step, "forward", "back")))
		w.Set(step)
	})
	if err != nil && ctx.Err() == nil {
		w.Log.Info("it is not seen when somebody sets the clock", "err", err)
	}
}

func (w *Watcher) lookAtMounts(ctx context.Context, asked <-chan struct{}, looked chan<- map[string]host.Mount) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-asked:
		}
		m, err := w.Machine.Mounts(w.Paths)
		if err != nil {
			w.Log.Warn("mounts are not known", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case looked <- m:
		}
	}
}

// watchMounts waits for changes of mounts; without that, a file system counts as
// read-only until the kernel speaks of one again.
func (w *Watcher) watchMounts(ctx context.Context) (<-chan struct{}, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	c, err := w.Machine.WatchMounts(ctx)
	if err != nil {
		w.Log.Warn("it is not seen when a file system can be written again", "err", err)
		c = make(chan struct{})
	}
	w.lookSoon() // it may have changed before it was watched
	return c, cancel
}

// line takes a message of the kernel's. Old ones are no events: they were, or happened
// before the node was one.
func (w *Watcher) line(l host.KernelLine) {
	m := classify(l.Text)
	now := time.Now()
	switch m.kind {
	case hungTask:
		if w.deadlock.hang(m.task, l.Text, w.Machine.Clocks().Boot-l.Age, now) {
			return // the condition's event tells it
		}
	case lockup:
		w.deadlock.lock(l.Text, now.Add(-l.Age))
		w.deadlock.look(now)
		return
	case filesystem:
		w.lookSoon()
	}
	if w.caught {
		w.event(m.reason, l.Text, now)
	}
}

func (w *Watcher) event(reason, text string, now time.Time) {
	t := w.told[reason]
	if t == nil {
		t = &toldEvent{}
		w.told[reason] = t
	}
	if !t.at.IsZero() && now.Sub(t.at) < eventEvery {
		t.more++
		return
	}
	message := shown(text)
	if t.more > 0 {
		message += fmt.Sprintf(" (%d more of the kind since the event before)", t.more)
	}
	t.at, t.more = now, 0
	w.Event(reason, message)
}

// publish has Conditions tell what is known now.
func (w *Watcher) publish() {
	var list []corev1.NodeCondition
	if w.caught {
		reason, message := w.deadlock.state()
		list = append(list, condition(KernelDeadlock, reason, message))
	}
	if w.mounts != nil {
		reason, message := readOnly(w.mounts)
		list = append(list, condition(ReadonlyFilesystem, reason, message))
	}
	w.mu.Lock()
	was := w.shown
	w.shown = list
	w.mu.Unlock()
	if slices.Equal(was, list) {
		return
	}
	w.Changed()
}
