package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagehelper "k8s.io/component-helpers/storage/volume"
)

// Claims finds the persistent volumes that pods claim.
type Claims interface {
	// Volume asks for the volume behind the claim of a pod's volume.
	Volume(ctx context.Context, p *corev1.Pod, v *corev1.Volume) (*corev1.PersistentVolume, error)
	// KnownVolume is what Volume last said, nil for nothing.
	KnownVolume(p *corev1.Pod, v *corev1.Volume) *corev1.PersistentVolume
}

// isClaim tells whether a volume of a pod stands for a persistent volume.
func isClaim(v *corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }

// resolve finds what a volume of a pod stands for. The API is asked for what is
// behind a claim, each time: it may have been lost since.
func (m *Manager) resolve(ctx context.Context, p *corev1.Pod, v *corev1.Volume) (Source, error) {
	if !isClaim(v) {
		return Source{Volume: *v}, nil
	}
	if m.Claims == nil {
		return Source{}, errors.New("persistentVolumeClaim volumes are not supported by this node")
	}
	pv, err := m.Claims.Volume(ctx, p, v)
	if err != nil {
		return Source{}, err
	}
	s := Source{Volume: *v, Persistent: pv}
	if err := m.belongs(p, s); err != nil {
		return Source{}, err
	}
	switch {
	case s.block() && mounts(p, v.Name):
		return Source{}, fmt.Errorf("volume %s has volumeMode Block, but is specified in volumeMounts", v.Name)
	case !s.block() && asDevice(p, v.Name):
		return Source{}, fmt.Errorf("volume %s has volumeMode Filesystem, but is specified in volumeDevices", v.Name)
	case pv.Spec.HostPath != nil && len(pv.Spec.MountOptions) > 0 && m.recorded(p.UID, v.Name) == nil:
		return Source{}, errors.New("mount options are not supported for this volume type")
	}
	return s, nil
}

// belongs tells whether a volume may be used on this node, by its node affinity. The
// scheduler sees to it, but a pod may name its node itself: what lies at the volume's path
// here is then something else. What the pod has stays, whatever the Node's labels become,
// and so it is while the Node is not known.
func (m *Manager) belongs(p *corev1.Pod, s Source) error {
	m.mu.Lock()
	node := m.node
	m.mu.Unlock()
	if node == nil || m.recorded(p.UID, s.Volume.Name) != nil {
		return nil
	}
	return inStep(stepAffinity, storagehelper.CheckNodeAffinity(s.Persistent, node.Labels))
}

// resolved is what resolve last found, without the API; ok is false when
// nothing is known of a claim.
func (m *Manager) resolved(p *corev1.Pod, v *corev1.Volume) (s Source, ok bool) {
	s.Volume = *v
	if !isClaim(v) {
		return s, true
	}
	if m.Claims != nil {
		s.Persistent = m.Claims.KnownVolume(p, v)
	}
	return s, s.Persistent != nil
}

// used tells whether a container has the volume, in whatever form. Of a pod without
// containers the volumes alone are known.
func used(p *corev1.Pod, name string) bool {
	return len(p.Spec.Containers) == 0 || mounts(p, name) || asDevice(p, name) ||
		slices.ContainsFunc(p.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool {
			return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name })
		})
}

// asDevice tells whether a container has the volume as a device.
func asDevice(p *corev1.Pod, name string) bool {
	in := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return d.Name == name })
	}
	return slices.ContainsFunc(p.Spec.Containers, in) || slices.ContainsFunc(p.Spec.InitContainers, in)
}

// mounts tells whether a container mounts the volume.
func mounts(p *corev1.Pod, name string) bool {
	in := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name })
	}
	return slices.ContainsFunc(p.Spec.Containers, in) || slices.ContainsFunc(p.Spec.InitContainers, in)
}
