package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// IPs are a pod's addresses, nil while it has none.
func (m *Manager) IPs(p *corev1.Pod) []string {
	if p.Spec.HostNetwork {
		return m.Host.IPs
	}
	if v, ok := m.View(p.UID); ok {
		if sb := v.Observed.Sandbox(); sb != nil {
			return sb.IPs
		}
	}
	return nil
}

// Told are all pods known, for the kubelet API: those of manifests with the status
// that the node tells of them, the others as the API has them.
func (m *Manager) Told() []*corev1.Pod {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	out := make([]*corev1.Pod, 0, len(workers))
	for _, w := range workers {
		w.mu.Lock()
		p, phase, status := w.pod, w.phase, w.shown.status
		w.mu.Unlock()
		if p == nil || phase.unclaimed() {
			continue
		}
		if status != nil {
			told := *p
			told.Status = *status
			p = &told
		}
		out = append(out, p)
	}
	return out
}

// Active are the pods that have not ended with all that belongs to them.
func (m *Manager) Active() []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range m.Pods() {
		if v, ok := m.View(p.UID); ok && !v.Ended {
			out = append(out, p)
		}
	}
	return out
}

// Ending tells whether a pod ends, and whether none of its containers runs any more nor
// will again, though it may not be released yet.
func (m *Manager) Ending(uid types.UID) (ending, idle bool) {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w == nil {
		return false, false
	}
	w.mu.Lock()
	p, phase, o := w.pod, w.phase, w.shown.observed
	w.mu.Unlock()
	over := p != nil && terminal(p)
	return over || phase.unwanted() || p != nil && p.DeletionTimestamp != nil, over && o != nil && !o.Running()
}
