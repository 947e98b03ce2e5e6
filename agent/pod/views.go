package pod

import corev1 "k8s.io/api/core/v1"

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
