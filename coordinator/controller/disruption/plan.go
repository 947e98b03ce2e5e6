package disruption

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-helpers/apps/poddisruptionbudget"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// deletionTimeout is how long an eviction that was allowed may take to show as
// the pod's deletion.
const deletionTimeout = 2 * time.Minute

// scaled tells whether the budget needs its pods' owners' scales.
func scaled(pdb *policyv1.PodDisruptionBudget) bool {
	return pdb.Spec.MaxUnavailable != nil || pdb.Spec.MinAvailable != nil && pdb.Spec.MinAvailable.Type == intstr.String
}

// expected returns how many pods there should be and how many must be healthy.
func expected(pdb *policyv1.PodDisruptionBudget, pods int, scale int32) (count, healthy int32, err error) {
	switch {
	case pdb.Spec.MaxUnavailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(pdb.Spec.MaxUnavailable, int(scale), true)
		return scale, max(scale-int32(n), 0), err
	case pdb.Spec.MinAvailable == nil:
		return 0, 0, nil
	case pdb.Spec.MinAvailable.Type == intstr.Int:
		return int32(pods), pdb.Spec.MinAvailable.IntVal, nil
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(pdb.Spec.MinAvailable, int(scale), true)
	return scale, int32(n), err
}

// disrupted keeps the evictions that are still on their way. overdue are pods
// that were to be deleted by now; in is when the next one will be.
func disrupted(pdb *policyv1.PodDisruptionBudget, pods []*corev1.Pod, now time.Time) (keep map[string]metav1.Time,
	overdue []*corev1.Pod, in time.Duration) {
	for _, p := range pods {
		at, ok := pdb.Status.DisruptedPods[p.Name]
		if !ok || p.DeletionTimestamp != nil {
			continue
		}
		left := at.Add(deletionTimeout).Sub(now)
		if left <= 0 {
			overdue = append(overdue, p)
			continue
		}
		if keep == nil {
			keep = map[string]metav1.Time{}
		}
		keep[p.Name] = at
		if in == 0 || left < in {
			in = left
		}
	}
	return keep, overdue, in
}

func healthy(pods []*corev1.Pod, disrupted map[string]metav1.Time) (n int32) {
	for _, p := range pods {
		if _, going := disrupted[p.Name]; !going && p.DeletionTimestamp == nil && controller.PodReady(p) {
			n++
		}
	}
	return n
}

// counted is what a status is made of.
type counted struct {
	expected, desired, current int32
	disrupted                  map[string]metav1.Time
}

// status returns a copy of the budget with its new status.
func status(pdb *policyv1.PodDisruptionBudget, c counted) *policyv1.PodDisruptionBudget {
	out := pdb.DeepCopy()
	out.Status = policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: pdb.Generation, DisruptedPods: c.disrupted, Conditions: out.Status.Conditions,
		ExpectedPods: c.expected, DesiredHealthy: c.desired, CurrentHealthy: c.current,
	}
	// A budget without pods allows nothing, so that its first pods are safe.
	if c.expected > 0 {
		out.Status.DisruptionsAllowed = max(c.current-c.desired, 0)
	}
	poddisruptionbudget.UpdateDisruptionAllowedCondition(out)
	return out
}
