package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Claims finds the persistent volumes that pods claim.
type Claims interface {
	// Volume asks for the volume behind the claim of a pod's volume.
	Volume(ctx context.Context, p *v1.Pod, v *v1.Volume) (*v1.PersistentVolume, error)
	// KnownVolume is what Volume last said, nil for nothing.
	KnownVolume(p *v1.Pod, v *v1.Volume) *v1.PersistentVolume
}

// claimed makes the volume behind a claim ready: a directory of the node.
func (m *Manager) claimed(ctx context.Context, p *v1.Pod, v *v1.Volume) error {
	if m.Claims == nil {
		return errors.New("persistentVolumeClaim volumes are not supported by this node")
	}
	pv, err := m.Claims.Volume(ctx, p, v)
	if err != nil {
		return err
	}
	if mode := pv.Spec.VolumeMode; mode != nil && *mode == v1.PersistentVolumeBlock {
		if mounts(p, v.Name) {
			return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeMounts", v.Name, *mode)
		}
		return errors.New("volumes with volumeMode Block are not supported by this node yet")
	}
	switch {
	case pv.Spec.HostPath != nil:
		return hostPath(pv.Spec.HostPath)
	case pv.Spec.Local != nil:
		return local(p, v, pv)
	}
	return fmt.Errorf("persistent volume %s: only hostPath and local volumes are supported by this node yet", pv.Name)
}

// mounts tells whether a container mounts the volume.
func mounts(p *v1.Pod, name string) bool {
	in := func(c v1.Container) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == name })
	}
	return slices.ContainsFunc(p.Spec.Containers, in) || slices.ContainsFunc(p.Spec.InitContainers, in)
}

// claimPath is where the volume behind a claim lies.
func (m *Manager) claimPath(p *v1.Pod, v *v1.Volume) (string, error) {
	if m.Claims != nil {
		if pv := m.Claims.KnownVolume(p, v); pv != nil && pv.Spec.HostPath != nil {
			return pv.Spec.HostPath.Path, nil
		} else if pv != nil && pv.Spec.Local != nil {
			return pv.Spec.Local.Path, nil
		}
	}
	return "", fmt.Errorf("volume %q is not ready", v.Name)
}
