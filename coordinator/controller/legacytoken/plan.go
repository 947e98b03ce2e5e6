package legacytoken

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/coordinator/auth/token"
)

// verdict is what is to be done with a Secret.
type verdict int

const (
	keep verdict = iota
	markInvalid
	remove
)

// judge looks at a Secret's own dates at a time; period is how long a token may
// lie unused. Whose it is, the caller looks at when it is not to be kept.
func judge(s *corev1.Secret, now time.Time, period time.Duration) verdict {
	since := now.Add(-period)
	if s.Type != corev1.SecretTypeServiceAccountToken || s.DeletionTimestamp != nil ||
		!s.CreationTimestamp.Time.Before(since) {
		return keep
	}
	// Without a label it was not used since uses are noted.
	if used, ok := s.Labels[token.LastUsedLabel]; ok {
		if _, err := time.Parse(time.DateOnly, used); err != nil || used >= since.Format(time.DateOnly) {
			return keep
		}
	}
	invalid := s.Labels[token.InvalidSinceLabel]
	if _, err := time.Parse(time.DateOnly, invalid); err != nil {
		return markInvalid
	}
	if invalid >= since.Format(time.DateOnly) {
		return keep
	}
	return remove
}

// trackedFrom is when uses began to be noted for sure, by the ConfigMap's date.
func trackedFrom(m *corev1.ConfigMap) (time.Time, bool) {
	day, err := time.Parse(time.DateOnly, m.Data[trackingKey])
	return day.AddDate(0, 0, 1), err == nil
}
