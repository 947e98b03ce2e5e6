package deployment

import (
	"fmt"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	reasonUpdated     = "ReplicaSetUpdated"
	reasonCreateError = "ReplicaSetCreateError"
	reasonCreated     = "NewReplicaSetCreated"
	reasonFound       = "FoundNewReplicaSet"
	reasonComplete    = "NewReplicaSetAvailable"
	reasonTimedOut    = "ProgressDeadlineExceeded"
	reasonPaused      = "DeploymentPaused"
	reasonResumed     = "DeploymentResumed"
)

// counts is the status without the rollout's progress.
func counts(d *appsv1.Deployment, s sets, now time.Time) appsv1.DeploymentStatus {
	all := s.all()
	terminating := sum(all, func(rs *appsv1.ReplicaSet) int32 {
		if rs.Status.TerminatingReplicas == nil {
			return 0
		}
		return *rs.Status.TerminatingReplicas
	})
	status := appsv1.DeploymentStatus{
		ObservedGeneration:  d.Generation,
		Replicas:            sum(all, func(rs *appsv1.ReplicaSet) int32 { return rs.Status.Replicas }),
		ReadyReplicas:       sum(all, func(rs *appsv1.ReplicaSet) int32 { return rs.Status.ReadyReplicas }),
		AvailableReplicas:   sum(all, available),
		TerminatingReplicas: &terminating,
		CollisionCount:      d.Status.CollisionCount,
		Conditions:          slices.Clone(d.Status.Conditions),
	}
	status.UnavailableReplicas = max(sum(all, size)-status.AvailableReplicas, 0)
	if s.current != nil {
		status.UpdatedReplicas = s.current.Status.Replicas
	}
	_, unavailable := limits(d)
	if status.AvailableReplicas >= want(d)-unavailable {
		setCondition(&status,
			condition(appsv1.DeploymentAvailable, corev1.ConditionTrue, "MinimumReplicasAvailable",
				"Deployment has minimum availability.", now))
	} else {
		setCondition(&status,
			condition(appsv1.DeploymentAvailable, corev1.ConditionFalse, "MinimumReplicasUnavailable",
				"Deployment does not have minimum availability.", now))
	}
	return status
}

// progress is the status with the Progressing and ReplicaFailure conditions.
// had is the status that progress is measured against; wait is the time until
// the progress deadline must be looked at, 0 when it need not.
func progress(d *appsv1.Deployment, s sets, now time.Time) (status appsv1.DeploymentStatus, wait time.Duration) {
	status = counts(d, s, now)
	if failure := failureOf(s); failure != nil {
		setCondition(&status, *failure)
	} else {
		dropCondition(&status, appsv1.DeploymentReplicaFailure)
	}
	if !hasDeadline(d) {
		dropCondition(&status, appsv1.DeploymentProgressing)
		return status, 0
	}
	current := find(&d.Status, appsv1.DeploymentProgressing)
	if current != nil && current.Reason == reasonComplete && status.Replicas == status.UpdatedReplicas {
		return status, 0
	}
	setProgressing(d, s, &status, now)
	return status, untilDeadline(d, &status, now)
}

func setProgressing(d *appsv1.Deployment, s sets, status *appsv1.DeploymentStatus, now time.Time) {
	subject := fmt.Sprintf("Deployment %q", d.Name)
	if s.current != nil {
		subject = fmt.Sprintf("ReplicaSet %q", s.current.Name)
	}
	current := find(&d.Status, appsv1.DeploymentProgressing)
	switch {
	case complete(d, status):
		setCondition(status,
			condition(appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonComplete,
				subject+" has successfully progressed.", now))
	case advanced(&d.Status, status):
		c := condition(appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonUpdated,
			subject+" is progressing.", now)
		if current != nil && current.Status == corev1.ConditionTrue {
			c.LastTransitionTime = current.LastTransitionTime
		}
		dropCondition(status, appsv1.DeploymentProgressing)
		setCondition(status, c)
	case timedOut(d, current, now):
		setCondition(status,
			condition(appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonTimedOut,
				subject+" has timed out progressing.", now))
	}
}

func complete(d *appsv1.Deployment, s *appsv1.DeploymentStatus) bool {
	n := want(d)
	return s.UpdatedReplicas == n && s.Replicas == n && s.AvailableReplicas == n && s.ObservedGeneration >= d.Generation
}

func advanced(old, s *appsv1.DeploymentStatus) bool {
	return s.UpdatedReplicas > old.UpdatedReplicas || s.Replicas-s.UpdatedReplicas < old.Replicas-old.UpdatedReplicas ||
		s.ReadyReplicas > old.ReadyReplicas || s.AvailableReplicas > old.AvailableReplicas
}

func hasDeadline(d *appsv1.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != math.MaxInt32
}

func deadline(d *appsv1.Deployment, c *appsv1.DeploymentCondition) time.Time {
	return c.LastUpdateTime.Add(time.Duration(*d.Spec.ProgressDeadlineSeconds) * time.Second)
}

func timedOut(d *appsv1.Deployment, c *appsv1.DeploymentCondition, now time.Time) bool {
	switch {
	case c == nil || c.Reason == reasonComplete:
		return false
	case c.Reason == reasonTimedOut:
		return true
	}
	return deadline(d, c).Before(now)
}

func untilDeadline(d *appsv1.Deployment, status *appsv1.DeploymentStatus, now time.Time) time.Duration {
	c := find(status, appsv1.DeploymentProgressing)
	if c == nil || c.Reason == reasonTimedOut || c.Reason == reasonComplete || complete(d, status) {
		return 0
	}
	// Conditions hold whole seconds.
	return max(deadline(d, c).Sub(now)+time.Second, time.Second)
}

// failureOf is the ReplicaFailure condition of the current set, or of any.
func failureOf(s sets) *appsv1.DeploymentCondition {
	all := s.all()
	slices.Reverse(all)
	for _, rs := range all {
		for _, c := range rs.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				return &appsv1.DeploymentCondition{
					Type: appsv1.DeploymentReplicaFailure, Status: c.Status, Reason: c.Reason, Message: c.Message,
					LastTransitionTime: c.LastTransitionTime, LastUpdateTime: c.LastTransitionTime,
				}
			}
		}
	}
	return nil
}

// paused is the Progressing condition that a pause or its end brings, nil when
// it stands already. The deadline does not run while paused (DEP-55).
func paused(d *appsv1.Deployment, now time.Time) *appsv1.DeploymentCondition {
	if !hasDeadline(d) {
		return nil
	}
	c := find(&d.Status, appsv1.DeploymentProgressing)
	if c != nil && c.Reason == reasonTimedOut {
		return nil
	}
	said := c != nil && c.Reason == reasonPaused
	var to appsv1.DeploymentCondition
	switch {
	case d.Spec.Paused && !said:
		to = condition(appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonPaused, "Deployment is paused", now)
	case !d.Spec.Paused && said:
		to = condition(appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonResumed,
			"Deployment is resumed", now)
	default:
		return nil
	}
	return &to
}

func condition(t appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string,
	now time.Time) appsv1.DeploymentCondition {
	at := metav1.NewTime(now).Rfc3339Copy()
	return appsv1.DeploymentCondition{Type: t, Status: status, LastUpdateTime: at, LastTransitionTime: at,
		Reason: reason, Message: message}
}

func find(s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

// setCondition leaves a condition alone that says the same already.
func setCondition(s *appsv1.DeploymentStatus, c appsv1.DeploymentCondition) {
	if have := find(s, c.Type); have != nil {
		if have.Status == c.Status && have.Reason == c.Reason {
			return
		}
		if have.Status == c.Status {
			c.LastTransitionTime = have.LastTransitionTime
		}
	}
	dropCondition(s, c.Type)
	s.Conditions = append(s.Conditions, c)
}

func dropCondition(s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) {
	s.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions),
		func(c appsv1.DeploymentCondition) bool { return c.Type == t })
}
