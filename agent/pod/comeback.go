package pod

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// comeBack makes a pod again that its source took away and had back before the last of
// it was gone. Its containers' runs count on, as the kubelet's do for a manifest that is
// removed and written again (its suite's "recreate when file is removed and recreated").
func (m *Manager) comeBack(p *corev1.Pod, source string, last *record.Pod) {
	if source == SourceFile {
		w := m.workerOf(p.UID)
		w.post(func() { countOn(p, w.rec, last) })
	}
	m.Update(p, source)
}

// countOn takes into the record of a pod that begins how its containers ended the last
// time. Init containers have to run again, which containers that ran before them would
// not let them; and only what always restarts is sure to run after an end.
func countOn(p *corev1.Pod, r, last *record.Pod) {
	if len(p.Spec.InitContainers) > 0 || p.Spec.RestartPolicy != corev1.RestartPolicyAlways || len(r.Containers) > 0 {
		return
	}
	for i := range p.Spec.Containers {
		name := p.Spec.Containers[i].Name
		if e := last.Get(name).Seen; e != nil {
			cr := r.Of(name)
			cr.Seen, cr.Again = e, true
		}
	}
}
