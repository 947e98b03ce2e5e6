package ttlafterfinished

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// due tells when a finished Job is to be deleted; never is false. Where another controller wrote
// the condition it may not tell since when: such a Job stays.
func due(j *batchv1.Job) (at time.Time, ever bool) {
	if j.Spec.TTLSecondsAfterFinished == nil || j.DeletionTimestamp != nil {
		return time.Time{}, false
	}
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			ttl := time.Duration(*j.Spec.TTLSecondsAfterFinished) * time.Second
			return c.LastTransitionTime.Add(ttl), !c.LastTransitionTime.IsZero()
		}
	}
	return time.Time{}, false
}
