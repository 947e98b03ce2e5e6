package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/beneath"
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

// local is a directory that was made by hand; the pod's group gets it.
func local(p *v1.Pod, v *v1.Volume, pv *v1.PersistentVolume) error {
	path := pv.Spec.Local.Path
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("failed to stat local volume %q: %w", path, err)
	}
	if !st.IsDir() {
		return fmt.Errorf("local volume %q is no directory: devices are not supported by this node yet", path)
	}
	readOnly := v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly
	if group := fsGroup(p); group != nil && !readOnly {
		return own(path, int(*group), changePolicy(p))
	}
	return nil
}

func changePolicy(p *v1.Pod) v1.PodFSGroupChangePolicy {
	if s := p.Spec.SecurityContext; s != nil && s.FSGroupChangePolicy != nil {
		return *s.FSGroupChangePolicy
	}
	return v1.FSGroupChangeAlways
}

// own gives all files below dir to a group, readable and writable by it; files
// made later inherit it. With OnRootMismatch nothing is done when dir is so
// already. Other pods may change the volume at the same time, so that each file
// is changed by its descriptor.
func own(dir string, group int, policy v1.PodFSGroupChangePolicy) error {
	d, err := beneath.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	root, err := d.Self()
	if err != nil {
		return err
	}
	if policy == v1.FSGroupChangeOnRootMismatch && int(root.Stat.Gid) == group && root.Stat.Mode&dirBits == dirBits {
		return nil
	}
	change := func(e *beneath.Entry) error { return ownFile(e, group) }
	// The root last, so that what was cut off is done again.
	return errors.Join(d.Walk(".", change), change(root))
}

// What a group needs of files and directories; new files inherit the group.
const (
	fileBits = 0o660
	dirBits  = unix.S_ISGID | 0o770
)

func ownFile(e *beneath.Entry, group int) error {
	if err := e.Chown(-1, group); err != nil || e.IsLink() {
		return err
	}
	if e.IsDir() {
		return e.Chmod(e.Stat.Mode | dirBits)
	}
	return e.Chmod(e.Stat.Mode | fileBits)
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
