package launch

import (
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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
func (c *container) mount(i int) (*runtimeapi.Mount, error) {
	m := &c.Container.VolumeMounts[i]
	recursive := ptr.Deref(m.RecursiveReadOnly, v1.RecursiveReadOnlyDisabled) != v1.RecursiveReadOnlyDisabled
	out := &runtimeapi.Mount{
		ContainerPath:     m.MountPath,
		Readonly:          m.ReadOnly,
		RecursiveReadOnly: m.ReadOnly && recursive,
		Propagation:       propagation(m.MountPropagation),
	}
	if !filepath.IsAbs(out.ContainerPath) {
		out.ContainerPath = "/" + out.ContainerPath
	}
	if v := c.volume(m.Name); v != nil {
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly || volume.FromAPI(v) {
			out.Readonly = true
		}
		if v.Image != nil {
			out.Image = &runtimeapi.ImageSpec{Image: v.Image.Reference, UserSpecifiedImage: v.Image.Reference}
			out.ImageSubPath, out.Readonly = m.SubPath, true
			return out, nil
		}
	}
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

func (c *container) volume(name string) *v1.Volume {
	for i := range c.Pod.Spec.Volumes {
		if v := &c.Pod.Spec.Volumes[i]; v.Name == name {
			return v
		}
	}
	return nil
}

// subPath is the part of the volume that is mounted, empty for all of it.
func (c *container) subPath(m *v1.VolumeMount) (string, error) {
	if m.SubPathExpr == "" {
		return m.SubPath, nil
	}
	missing := ""
	sub := volume.Expand(m.SubPathExpr, func(name string) (string, bool) {
		v, ok := c.variable(name)
		if !ok {
			missing = name
		}
		return v, ok
	})
	if missing != "" {
		return "", fmt.Errorf("missing value for %q", missing)
	}
	return sub, nil
}

func propagation(mode *v1.MountPropagationMode) runtimeapi.MountPropagation {
	switch ptr.Deref(mode, v1.MountPropagationNone) {
	case v1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	case v1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	}
	return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
}
