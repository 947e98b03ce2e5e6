package withdraw

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// WaitAnnotation of a Pod says how long it runs on at most, at its end, until no node sends
// new connections to it: a duration such as 10s. With 0s it is told to end at once.
const WaitAnnotation = "shoal.io/endpoint-removal-wait"

// Bound is how long a pod waits, by its annotation or else as the node has it. A value that is
// no duration counts as none.
func Bound(p *corev1.Pod, node time.Duration) time.Duration {
	if d, err := time.ParseDuration(p.Annotations[WaitAnnotation]); err == nil && d >= 0 {
		return d
	}
	return node
}
