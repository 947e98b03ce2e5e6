package pod

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

// quota is a container's quota of CPU time.
func (m *Manager) quota(p *corev1.Pod, c *corev1.Container, r *criv1.LinuxContainerResources) int64 {
	if m.Pinned == nil {
		return r.CpuQuota
	}
	return m.Pinned(p, c).Quota(r.CpuQuota)
}

// Throttle limits the CPU time of a pod and of its containers that run to what they were
// allocated: CPUs of its own, which a pod has lost, had no quota.
func (m *Manager) Throttle(ctx context.Context, uid types.UID) error {
	for p := m.allocated(uid); p != nil; {
		if err := m.throttle(ctx, p); err != nil {
			return fmt.Errorf("limit the CPU time of pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		now := m.allocated(uid)
		if now == p {
			return nil
		}
		p = now // it was resized meanwhile
	}
	return nil
}

// allocated is a pod with what it was allocated, nil where there is none.
func (m *Manager) allocated(uid types.UID) *corev1.Pod {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shown.allocated != nil {
		return w.shown.allocated
	}
	return w.pod // of its record: the worker has not looked yet
}

func (m *Manager) throttle(ctx context.Context, p *corev1.Pod) error {
	o, err := m.observe(ctx, p.UID)
	if err != nil || o.Sandbox() == nil {
		return err
	}
	whole := m.Host.PodLimits(p)
	whole.MemoryBytes = 0 // stays as it is
	errs := []error{m.limit(p, whole)}
	record.EachContainer(p, func(c *corev1.Container) {
		ob := o.Latest(c.Name)
		if ob == nil || ob.State != record.Running {
			return
		}
		r := launch.Resources(m.Host, p, c)
		r = &criv1.LinuxContainerResources{CpuPeriod: r.CpuPeriod, CpuQuota: m.quota(p, c, r)}
		errs = append(errs, m.Runtime.UpdateContainerResources(ctx, ob.ID, &criv1.ContainerResources{Linux: r}))
	})
	return errors.Join(errs...)
}
