package pod

import corev1 "k8s.io/api/core/v1"

// Standing is how a pod stands with the agent, in the words of the kubelet's metrics.
type Standing struct {
	Static bool
	// Config is "desired" where its source has it, "orphan" where it does not any more, and
	// "runtime_only" where none ever had.
	Config string
	// Lifecycle is "sync", "terminating", or "terminated" where only its end is to be told.
	Lifecycle string
	// Active pods are looked at when another is admitted.
	Active bool
}

// Census tells how each pod stands.
func (m *Manager) Census() []Standing {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	out := make([]Standing, 0, len(workers))
	for _, w := range workers {
		w.mu.Lock()
		if w.phase != gone {
			out = append(out, standing(w.pod, w.from, w.phase, w.shown))
		}
		w.mu.Unlock()
	}
	return out
}

func standing(p *corev1.Pod, source string, at phase, s shown) Standing {
	out := Standing{Static: source == SourceFile, Config: "desired", Lifecycle: "sync"}
	switch {
	case at.unclaimed():
		out.Config = "runtime_only"
	case at == removed:
		out.Config = "orphan"
	}
	ends := at.unwanted() || s.ended || p != nil && p.DeletionTimestamp != nil
	switch {
	case s.released:
		out.Lifecycle = "terminated"
	case ends:
		out.Lifecycle = "terminating"
	}
	out.Active = (at == held || at == wanted) && p != nil && !terminal(p) && !s.released
	return out
}
