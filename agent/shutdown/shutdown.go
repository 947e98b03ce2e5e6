package shutdown

import (
	"context"
	"io"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"
)

// criticalPriority is that of system-cluster-critical and above.
const criticalPriority = 2000000000

// Pods ends pods.
type Pods interface {
	// Active returns the pods that have not ended.
	Active() []*v1.Pod
	// End asks a pod to end within grace.
	End(p *v1.Pod, grace time.Duration)
	// Changed holds a token whenever Active may answer differently.
	Changed() <-chan struct{}
}

// Bus is what tells of shutdowns and delays them.
type Bus interface {
	Shutdowns(ctx context.Context) (<-chan bool, error)
	Delay() (io.Closer, error)
}

// Manager ends pods in order when a shutdown begins.
type Manager struct {
	Bus  Bus
	Pods Pods
	// Grace is the time for all pods, Critical the part of it that is kept
	// for critical ones.
	Grace, Critical time.Duration
	// Leaving tells others that the node goes (true) or stays (false).
	Leaving func(bool)
	Log     *slog.Logger
}

// Run waits for shutdowns until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	delay, err := m.Bus.Delay()
	if err != nil {
		return err
	}
	defer func() { delay.Close() }()
	signals, err := m.Bus.Shutdowns(ctx)
	if err != nil {
		return err
	}
	for begins := range signals {
		m.Leaving(begins)
		if !begins {
			continue
		}
		m.Log.Info("the machine shuts down: pods are ended")
		for _, w := range Waves(m.Grace, m.Critical) {
			m.end(ctx, w)
		}
		delay.Close()
		if delay, err = m.Bus.Delay(); err != nil {
			return nil // the machine is on its way down
		}
	}
	return nil
}

// Wave is a group of pods and the time that it has.
type Wave struct {
	Critical bool
	Grace    time.Duration
}

// Waves is the order in which pods end. It is pure.
func Waves(grace, critical time.Duration) []Wave {
	return []Wave{{false, max(0, grace-critical)}, {true, min(grace, critical)}}
}

func (m *Manager) end(ctx context.Context, w Wave) {
	for _, p := range m.Pods.Active() {
		if IsCritical(p) == w.Critical {
			m.Pods.End(p, w.Grace)
		}
	}
	late := time.After(w.Grace)
	changed := m.Pods.Changed()
	for {
		left := 0
		for _, p := range m.Pods.Active() {
			if IsCritical(p) == w.Critical {
				left++
			}
		}
		if left == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-late:
			return
		case <-changed:
		}
	}
}

// IsCritical tells whether a pod is among those that end last.
func IsCritical(p *v1.Pod) bool {
	return p.Spec.Priority != nil && *p.Spec.Priority >= criticalPriority
}
