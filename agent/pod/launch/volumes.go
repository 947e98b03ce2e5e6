package launch

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/volume"
)

// volumes mounts the pod's volumes. What is mounted knows the pod's users.
func volumes(c *container) error {
	users := c.Users.namespace()
	for i := range c.Container.VolumeMounts {
		m, err := c.mount(i)
		if err != nil {
			return err
		}
		m.UidMappings, m.GidMappings = users.GetUids(), users.GetGids()
		c.config.Mounts = append(c.config.Mounts, m)
	}
	return nil
}

// mount is the container's i-th of volumes.
func (c *container) mount(i int) (*criv1.Mount, error) {
	m := &c.Container.VolumeMounts[i]
	recursive := ptr.Deref(m.RecursiveReadOnly, corev1.RecursiveReadOnlyDisabled) != corev1.RecursiveReadOnlyDisabled
	out := &criv1.Mount{
		ContainerPath:     m.MountPath,
		Readonly:          m.ReadOnly,
		RecursiveReadOnly: m.ReadOnly && recursive,
		Propagation:       propagation(m.MountPropagation),
	}
	if !filepath.IsAbs(out.ContainerPath) {
		out.ContainerPath = "/" + out.ContainerPath
	}
	if v := c.volume(m.Name); v != nil {
		inline := v.CSI != nil && ptr.Deref(v.CSI.ReadOnly, false)
		if readOnlyClaim(v) || inline || volume.FromAPI(v) {
			out.Readonly = true
		}
		if v.Image != nil {
			out.Image = &criv1.ImageSpec{Image: v.Image.Reference, UserSpecifiedImage: v.Image.Reference}
			var err error
			out.ImageSubPath, err = c.subPath(m)
			out.Readonly = true
			return out, err
		}
	}
	out.SelinuxRelabel = c.Host.SELinux && c.Relabel(m.Name)
	sub, err := c.subPath(m)
	switch {
	case err != nil:
	case sub == "":
		out.HostPath, err = c.Volume(m.Name)
	default:
		out.HostPath, err = c.SubPath(volume.SubPath{Volume: m.Name, Container: c.Container.Name, Index: i, Path: sub})
	}
	return out, err
}

func (c *container) volume(name string) *corev1.Volume {
	for i := range c.Pod.Spec.Volumes {
		if v := &c.Pod.Spec.Volumes[i]; v.Name == name {
			return v
		}
	}
	return nil
}

// subPath is the part of the volume that is mounted, empty for all of it.
func (c *container) subPath(m *corev1.VolumeMount) (string, error) {
	if m.SubPathExpr == "" {
		return m.SubPath, nil
	}
	missing := map[string]bool{}
	sub := volume.Expand(m.SubPathExpr, func(name string) (string, bool) {
		v, ok := c.variable(name)
		if v == "" { // it would be another part of the volume, or all of it
			missing[name] = true
		}
		return v, ok
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("missing value for %s", strings.Join(slices.Sorted(maps.Keys(missing)), ", "))
	}
	return sub, nil
}

func propagation(mode *corev1.MountPropagationMode) criv1.MountPropagation {
	switch ptr.Deref(mode, corev1.MountPropagationNone) {
	case corev1.MountPropagationBidirectional:
		return criv1.MountPropagation_PROPAGATION_BIDIRECTIONAL
	case corev1.MountPropagationHostToContainer:
		return criv1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	}
	return criv1.MountPropagation_PROPAGATION_PRIVATE
}
