package launch

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// devices are the volumes that the container gets as devices.
func devices(c *container) error {
	for _, d := range c.Container.VolumeDevices {
		path, err := c.Volume(d.Name)
		if err != nil {
			return err
		}
		permissions := "mrw"
		if v := c.volume(d.Name); v != nil && readOnlyClaim(v) {
			permissions = "r"
		}
		c.config.Devices = append(c.config.Devices, &criv1.Device{
			ContainerPath: d.DevicePath,
			HostPath:      path,
			Permissions:   permissions,
		})
	}
	return nil
}

// plugins are what the container gets with the devices of device plugins. What its spec
// sets counts more: variables of the environment come after these.
func plugins(c *container) error {
	if c.Plugged == nil || !asksForExtended(c.Container) {
		return nil
	}
	given, err := c.Plugged(c.Container)
	if err != nil || given == nil {
		return err
	}
	c.config.Envs = append(c.config.Envs, given.Envs...)
	c.config.Mounts = append(c.config.Mounts, given.Mounts...)
	c.config.Devices = append(c.config.Devices, given.Devices...)
	c.config.CDIDevices = append(c.config.CDIDevices, given.CDIDevices...)
	if c.config.Annotations == nil {
		c.config.Annotations = map[string]string{}
	}
	for name, value := range given.Annotations {
		if _, own := c.config.Annotations[name]; !own {
			c.config.Annotations[name] = value
		}
	}
	return nil
}

// asksForExtended tells whether the container asks for a resource that is not
// Kubernetes' own.
func asksForExtended(c *corev1.Container) bool {
	for name := range c.Resources.Limits {
		if strings.Contains(string(name), "/") {
			return true
		}
	}
	return false
}

// claims are the devices of the resource claims that the container asks for, and of the
// one that was made for extended resources.
func claims(c *container) error {
	if len(c.Container.Resources.Claims) == 0 && c.Pod.Status.ExtendedResourceClaimStatus == nil {
		return nil
	}
	names, err := c.CDI(c.Container)
	if err != nil {
		return err
	}
	for _, name := range names {
		c.config.CDIDevices = append(c.config.CDIDevices, &criv1.CDIDevice{Name: name})
	}
	return nil
}

// readOnlyClaim tells whether the pod may only read what is behind its claim.
func readOnlyClaim(v *corev1.Volume) bool {
	return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly
}
