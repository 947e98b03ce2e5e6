package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Visit calls f for each container: init, regular, then ephemeral ones, with
// its path below p.
func Visit(s *corev1.PodSpec, p *field.Path, f func(*corev1.Container, *field.Path)) {
	for i := range s.InitContainers {
		f(&s.InitContainers[i], p.Child("initContainers").Index(i))
	}
	for i := range s.Containers {
		f(&s.Containers[i], p.Child("containers").Index(i))
	}
	for i := range s.EphemeralContainers {
		c := (*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon)
		f(c, p.Child("ephemeralContainers").Index(i))
	}
}

// IsSidecar tells whether an init container keeps running (KEP-753).
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
