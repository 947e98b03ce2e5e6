package hollow

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// runForAnnotation of a pod on a hollow node lets its containers end well
	// after that time.
	runForAnnotation = "hollow.shoal-project.io/run-for"
	// initTime is how long an init container runs.
	initTime = 10 * time.Millisecond
)

// Lifetime is when a container of a pod ends by itself, 0 for never: init
// containers must.
func Lifetime(p *corev1.Pod, container string) time.Duration {
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.Name != container {
			continue
		}
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			return 0
		}
		return initTime
	}
	d, err := time.ParseDuration(p.Annotations[runForAnnotation])
	if err != nil {
		return 0
	}
	return d
}
