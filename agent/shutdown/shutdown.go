package shutdown

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// criticalPriority is that of system-cluster-critical and above.
const criticalPriority = 2000000000

// Pods ends pods.
type Pods interface {
	// Active returns the pods that have not ended with all that belongs to
	// them.
	Active() []*corev1.Pod
	// End asks a pod to end within grace.
	End(p *corev1.Pod, grace time.Duration)
	// Changed holds a token whenever Active may answer differently.
	Changed() <-chan struct{}
}

// Bus is what tells of shutdowns and delays them.
type Bus interface {
	// Shutdowns is closed when the bus is lost.
	Shutdowns(ctx context.Context) (<-chan bool, error)
	Delay() (io.Closer, error)
	// MaxDelay is how long a shutdown waits at most.
	MaxDelay() (time.Duration, error)
	// RaiseDelay has shutdowns wait for as long as limit.
	RaiseDelay(ctx context.Context, limit time.Duration) error
	Close() error
}

// Period is the time that pods of a priority and above have, up to the next
// period's.
type Period struct {
	Priority int32
	Grace    time.Duration
}

// Periods are those of shutdownGracePeriod, the time for all pods, and
// shutdownGracePeriodCriticalPods, the part of it kept for critical ones.
func Periods(grace, critical time.Duration) []Period {
	critical = min(grace, critical)
	return []Period{{0, grace - critical}, {criticalPriority, critical}}
}

// Total is the time that all pods have together.
func Total(periods []Period) time.Duration {
	var sum time.Duration
	for _, p := range periods {
		sum += p.Grace
	}
	return sum
}

// Manager ends pods in order when a shutdown begins.
type Manager struct {
	// Connect opens the bus; it is opened again when it was lost.
	Connect func(context.Context) (Bus, error)
	Pods    Pods
	Periods []Period
	// Leaving tells others that the node goes (true) or stays (false).
	Leaving func(bool)
	// Told returns when the API knows how the pods ended, or cannot be told.
	Told func(context.Context)
	// StateFile keeps the Times of the last shutdown, "" does not.
	StateFile string
	Log       *slog.Logger

	warned bool // of a delay that is too short
}

const (
	// reconnect is the pause before the bus is opened again: nothing tells
	// when it can be.
	reconnect = time.Second
	// tellTime bounds Told: the machine waits for it.
	tellTime = time.Second
)

// Run waits for shutdowns until ctx ends. A bus that cannot be opened is told
// once and tried on.
func (m *Manager) Run(ctx context.Context) error {
	failed := false
	for ctx.Err() == nil {
		err := m.listen(ctx)
		if err != nil && !failed && ctx.Err() == nil {
			m.Log.Warn("shutdowns of the machine are not noticed: pods will be cut off", "err", err)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
		case <-time.After(reconnect):
		}
	}
	return nil
}

// listen serves one connection until it is lost.
func (m *Manager) listen(ctx context.Context) error {
	bus, err := m.Connect(ctx)
	if err != nil {
		return err
	}
	defer bus.Close()
	signals, err := bus.Shutdowns(ctx)
	if err != nil {
		return err
	}
	delay, err := bus.Delay()
	if err != nil {
		return err
	}
	defer func() { delay.Close() }()
	m.compare(ctx, bus)
	for begins := range signals {
		m.Leaving(begins)
		if begins {
			m.Log.Info("the machine shuts down: pods are ended")
			m.endAll(ctx)
			delay.Close()
			continue
		}
		m.Log.Info("the shutdown was called off")
		if delay, err = bus.Delay(); err != nil {
			return err
		}
	}
	return nil
}

// compare has the machine wait for as long as pods have. It warns once when it does not.
func (m *Manager) compare(ctx context.Context, bus Bus) {
	limit, err := bus.MaxDelay()
	if err != nil || limit >= Total(m.Periods) {
		return
	}
	err = bus.RaiseDelay(ctx, Total(m.Periods))
	if err == nil || m.warned || ctx.Err() != nil {
		return
	}
	m.warned = true
	m.Log.Warn("logind lets a shutdown wait for less than the pods' time: raise InhibitDelayMaxSec in logind.conf",
		"inhibitDelayMaxSec", limit, "pods", Total(m.Periods), "err", err)
}

func (m *Manager) endAll(ctx context.Context) {
	times := Times{Start: time.Now()}
	m.keep(times)
	for _, w := range Waves(m.Periods, m.Pods.Active()) {
		m.end(ctx, w)
	}
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	m.Told(ctx)
	times.End = time.Now()
	m.keep(times)
}

// Wave is a group of pods and the time that it has.
type Wave struct {
	Pods  []*corev1.Pod
	Grace time.Duration
}

// Waves is the order in which pods end: each in the period of the highest
// priority that its own reaches, or in the first. Waves without pods are left
// out. It is pure.
func Waves(periods []Period, pods []*corev1.Pod) []Wave {
	periods = slices.SortedStableFunc(slices.Values(periods),
		func(a, b Period) int { return int(int64(a.Priority) - int64(b.Priority)) })
	if len(periods) == 0 {
		return nil
	}
	all := make([]Wave, len(periods))
	for i, p := range periods {
		all[i].Grace = p.Grace
	}
	for _, p := range pods {
		i := len(periods) - 1
		for i > 0 && periods[i].Priority > priority(p) {
			i--
		}
		all[i].Pods = append(all[i].Pods, p)
	}
	return slices.DeleteFunc(all, func(w Wave) bool { return len(w.Pods) == 0 })
}

func priority(p *corev1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

func (m *Manager) end(ctx context.Context, w Wave) {
	mine := map[string]bool{}
	for _, p := range w.Pods {
		mine[string(p.UID)] = true
		m.Pods.End(p, w.Grace)
	}
	late := time.After(w.Grace)
	for m.left(mine) {
		select {
		case <-ctx.Done():
			return
		case <-late:
			m.Log.Warn("pods did not end in their time", "time", w.Grace)
			return
		case <-m.Pods.Changed():
		}
	}
}

// left tells whether one of the pods is active.
func (m *Manager) left(mine map[string]bool) bool {
	return slices.ContainsFunc(m.Pods.Active(), func(p *corev1.Pod) bool { return mine[string(p.UID)] })
}
