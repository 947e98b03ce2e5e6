package service

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// maxTriggers bounds what is kept where nobody asks for it, or not for long.
const maxTriggers = 1024

// triggered notes when what changed the slice happened, by its controller's word.
// What happened before this source began says nothing of how fast it is. The lock
// is held.
func (s *Source) triggered(o *discoveryv1.EndpointSlice) {
	at, err := time.Parse(time.RFC3339Nano, o.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if err == nil && at.After(s.begun) && len(s.triggers) < maxTriggers {
		s.triggers = append(s.triggers, at)
	}
}

// Triggers takes the times of what changed endpoints since it was called last.
func (s *Source) Triggers() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.triggers
	s.triggers = nil
	return out
}
