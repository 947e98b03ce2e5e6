package volume

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The back-off of a pod whose volumes cannot be written, as the kubelet's for
// volumes that cannot be mounted: at most 2 minutes.
const (
	firstDelay = time.Second
	lastDelay  = 2 * time.Minute
)

// soonest is how long a token is used at least, whatever the clocks say.
const soonest = 10 * time.Second

// schedule makes a pod due at a time, unless it is due earlier; zero is never.
func (m *Manager) schedule(e *entry, at time.Time) {
	if at.IsZero() {
		return
	}
	if first := time.Now().Add(soonest); at.Before(first) {
		at = first
	}
	if e.due.IsZero() || at.Before(e.due) {
		e.due = at
	}
}

// Changed has the pods of a namespace refreshed after an object of it changed.
func (m *Manager) Changed(namespace string) {
	m.mu.Lock()
	now := time.Now()
	for _, e := range m.pods {
		if e.pod.Namespace == namespace {
			e.due = now
		}
	}
	m.mu.Unlock()
	m.notify()
}

// ClockSet has tokens looked at: the times at which they were to be renewed are of a clock
// that somebody has set.
func (m *Manager) ClockSet() {
	m.mu.Lock()
	now := time.Now()
	for _, e := range m.pods {
		if !e.due.IsZero() {
			e.due = now
		}
	}
	m.mu.Unlock()
	m.notify()
}

// notify wakes Run, which looks what is due.
func (m *Manager) notify() {
	select {
	case m.woken() <- struct{}{}:
	default:
	}
}

func (m *Manager) woken() chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wake == nil {
		m.wake = make(chan struct{}, 1)
	}
	return m.wake
}

// Run keeps what volumes show up to date, and renews tokens in time, until ctx
// ends. Each pod is refreshed on its own: one whose volume or token takes long
// holds up no other.
func (m *Manager) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for _, p := range m.restored {
		running.Go(func() { m.resume(ctx, p) })
	}
	m.restored = nil
	if m.Health {
		running.Go(func() { m.watchHealth(ctx) })
	}
	for {
		due, wait := m.takeDue(time.Now())
		for _, e := range due {
			running.Go(func() { m.refresh(ctx, e) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.woken():
		case <-time.After(wait):
		}
	}
}

// takeDue returns the pods to refresh now, and how long to wait for the next.
func (m *Manager) takeDue(now time.Time) ([]*entry, time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	wait := time.Hour
	var due []*entry
	for _, e := range m.pods {
		switch {
		case e.due.IsZero() || e.active || !e.made || e.pod.DeletionTimestamp != nil:
		case now.Before(e.due):
			wait = min(wait, e.due.Sub(now))
		default:
			e.active, e.due = true, time.Time{}
			due = append(due, e)
		}
	}
	return due, wait
}

func (m *Manager) refresh(ctx context.Context, e *entry) {
	m.mu.Lock()
	p := e.pod
	if e.newer != nil {
		p, e.newer = e.newer, nil
	}
	m.mu.Unlock()
	err := m.update(ctx, p)
	if ctx.Err() == nil {
		m.refreshed(e, p, err, time.Now())
	}
	m.notify()
}

// refreshed notes how a refresh went. A failure is told once, and tried again
// with a growing delay.
func (m *Manager) refreshed(e *entry, p *corev1.Pod, err error, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.active = false
	name := p.Namespace + "/" + p.Name
	switch {
	case err == nil:
		if e.delay > 0 {
			m.Log.Info("volumes of a pod are up to date again", "pod", name)
		}
		e.delay = 0
		return
	case apierrors.IsNotFound(err):
		// Deleted, with its namespace mostly: what is mounted stays, and its
		// return is a change.
		m.Log.Debug("volumes of a pod stay as they are", "pod", name, "err", err)
		m.schedule(e, now.Add(lastDelay))
		return
	case e.delay == 0:
		m.Log.Warn("volumes of a pod are not up to date; it is tried again", "pod", name, "err", err)
	}
	e.delay = min(max(2*e.delay, firstDelay), lastDelay)
	if next := now.Add(e.delay); e.due.IsZero() || e.due.After(next) {
		e.due = next
	}
}
