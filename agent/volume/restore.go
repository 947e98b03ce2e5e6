package volume

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Restore takes over, from records alone, what an earlier agent made. Nothing is
// mounted or unmounted yet: Run has the volumes of pods that run follow changes
// again, and Release undoes those of the others.
func (m *Manager) Restore(running []*corev1.Pod) error {
	all, err := m.records().All()
	if err != nil {
		return err
	}
	for _, v := range all {
		e := m.entry(
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: v.Pod.UID, Namespace: v.Pod.Namespace, Name: v.Pod.Name}})
		if e.volumes == nil {
			e.volumes = map[string]*Volume{}
		}
		e.volumes[v.Volume.Name] = v
		if v.Project != 0 {
			m.takeProject(v)
		}
	}
	for _, p := range running {
		m.entry(p).pod = p
		m.adopt(p)
	}
	m.restored = running
	return nil
}

// adopt records what an agent that kept no records made for a pod. What cannot
// be told of a claim is recorded when it is mounted again.
func (m *Manager) adopt(p *corev1.Pod) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if m.recorded(p.UID, v.Name) != nil {
			continue
		}
		s, ok := m.resolved(p, v)
		d, err := find(m.table(), s)
		if !ok || err != nil {
			continue
		}
		if err := m.keep(m.volume(p, s, d)); err != nil {
			m.Log.Warn("a volume that is mounted is not recorded", "pod", p.Namespace+"/"+p.Name,
				"volume", v.Name, "err", err)
		}
	}
}

// resume makes the volumes of a pod that ran before this agent follow changes.
func (m *Manager) resume(ctx context.Context, p *corev1.Pod) {
	m.mu.Lock()
	e := m.pods[p.UID]
	m.mu.Unlock()
	if e == nil {
		return // released meanwhile
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return
	}
	if err := m.write(ctx, e, resuming); err != nil && ctx.Err() == nil {
		m.Log.Debug("volumes are made again with the pod", "pod", p.Namespace+"/"+p.Name, "err", err)
		m.mu.Lock()
		e.made = true // by an earlier agent: what follows changes is tried again
		m.schedule(e, time.Now())
		m.mu.Unlock()
		m.notify()
	}
}

// Pods are those that have volumes. Of one that Ensure and Restore did not name,
// the names are known alone.
func (m *Manager) Pods() []*corev1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	pods := make([]*corev1.Pod, 0, len(m.pods))
	for _, e := range m.pods {
		pods = append(pods, e.pod)
	}
	return pods
}
