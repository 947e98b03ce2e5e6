package launch

import (
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
