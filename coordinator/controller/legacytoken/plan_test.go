package legacytoken

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestJudge(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	const used, invalid = "kubernetes.io/legacy-token-last-used", "kubernetes.io/legacy-token-invalid-since"
	old := now.AddDate(-3, 0, 0)
	for name, tt := range map[string]struct {
		kind    corev1.SecretType
		made    time.Time
		labels  map[string]string
		deleted bool
		want    verdict
	}{
		"never_used":       {made: old, want: markInvalid},
		"used_long_ago":    {made: old, labels: map[string]string{used: "2025-06-30"}, want: markInvalid},
		"used_in_time":     {made: old, labels: map[string]string{used: "2025-07-01"}, want: keep},
		"used_at_no_date":  {made: old, labels: map[string]string{used: "x"}, want: keep},
		"young":            {made: now.AddDate(0, -11, 0), want: keep},
		"just_old_enough":  {made: now.Add(-DefaultPeriod - time.Second), want: markInvalid},
		"just_not":         {made: now.Add(-DefaultPeriod), want: keep},
		"being_deleted":    {made: old, deleted: true, want: keep},
		"other_type":       {made: old, kind: corev1.SecretTypeOpaque, want: keep},
		"invalid_for_long": {made: old, labels: map[string]string{invalid: "2025-06-30"}, want: remove},
		"invalid_lately":   {made: old, labels: map[string]string{invalid: "2025-07-01"}, want: keep},
		"invalid_since_no": {made: old, labels: map[string]string{invalid: "yes"}, want: markInvalid},
		"invalid_but_used": {made: old, labels: map[string]string{invalid: "2025-06-30", used: "2026-06-01"}, want: keep},
	} {
		t.Run(name, func(t *testing.T) {
			s := &corev1.Secret{Type: tt.kind, ObjectMeta: metav1.ObjectMeta{
				CreationTimestamp: metav1.NewTime(tt.made), Labels: tt.labels,
			}}
			if tt.kind == "" {
				s.Type = corev1.SecretTypeServiceAccountToken
			}
			if tt.deleted {
				s.DeletionTimestamp = &metav1.Time{Time: now}
			}
			if got := judge(s, now, DefaultPeriod); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}
