package dra

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Resources are the claims of which a container asks for devices, with all that drivers
// have prepared for them, in the form of the pod resources API.
func (m *Manager) Resources(p *corev1.Pod, container *corev1.Container) (out []*podresourcesv1.DynamicResource) {
	for _, name := range claimNames(p, container) {
		c := m.of(p, name)
		if c == nil {
			continue
		}
		r := &podresourcesv1.DynamicResource{ClaimName: c.Name, ClaimNamespace: c.Namespace}
		for _, driver := range c.Drivers {
			for i := range c.Prepared[driver] {
				d := &c.Prepared[driver][i]
				one := &podresourcesv1.ClaimResource{DriverName: driver, PoolName: d.Pool, DeviceName: d.Name}
				if d.Share != "" {
					one.ShareId = &d.Share
				}
				for _, id := range d.CDI {
					one.CdiDevices = append(one.CdiDevices, &podresourcesv1.CDIDevice{Name: id})
				}
				r.ClaimResources = append(r.ClaimResources, one)
			}
		}
		out = append(out, r)
	}
	return out
}

// claimNames are the claims that a container asks for, by name or by extended resources.
func claimNames(p *corev1.Pod, container *corev1.Container) (names []string) {
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, wanted := range container.Resources.Claims {
		for i := range p.Spec.ResourceClaims {
			if p.Spec.ResourceClaims[i].Name != wanted.Name {
				continue
			}
			if name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i]); err == nil && name != nil {
				add(*name)
			}
		}
	}
	if made := p.Status.ExtendedResourceClaimStatus; made != nil {
		for _, r := range made.RequestMappings {
			if r.ContainerName == container.Name {
				add(made.ResourceClaimName)
			}
		}
	}
	return names
}
