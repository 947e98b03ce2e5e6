package resourcequota

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"

	"github.com/shoal-project/shoal/coordinator/quota"
)

// concerns returns the resources that a quota is about: those of the evaluators
// that know one of its names, and any that it counts by "count/RESOURCE.GROUP".
func concerns(hard corev1.ResourceList, evaluators []quotav1.Evaluator) sets.Set[schema.GroupResource] {
	out := sets.New[schema.GroupResource]()
	ignored := quota.Ignored()
	for name := range hard {
		for _, e := range evaluators {
			if len(e.MatchingResources([]corev1.ResourceName{name})) > 0 {
				out.Insert(e.GroupResource())
			}
		}
		counted, ok := strings.CutPrefix(string(name), "count/")
		if !ok {
			continue
		}
		resource, group, _ := strings.Cut(counted, ".")
		gr := schema.GroupResource{Group: group, Resource: resource}
		if _, never := ignored[gr]; !never {
			out.Insert(gr)
		}
	}
	return out
}

// next is the status of a quota whose objects take usage. What usage does not
// tell stays as it was.
func next(q *corev1.ResourceQuota, usage corev1.ResourceList) corev1.ResourceQuotaStatus {
	hard := q.Spec.Hard.DeepCopy()
	used := q.Status.Used.DeepCopy()
	if used == nil {
		used = corev1.ResourceList{}
	}
	for name, amount := range usage {
		used[name] = amount
	}
	return corev1.ResourceQuotaStatus{Hard: hard, Used: quotav1.Mask(used, quotav1.ResourceNames(hard))}
}

// lower tells whether b has less of something than a.
func lower(a, b corev1.ResourceList) bool {
	for name, amount := range b {
		if was, ok := a[name]; ok && amount.Cmp(was) < 0 {
			return true
		}
	}
	return false
}

// differs tells whether a status is worth writing.
func differs(q *corev1.ResourceQuota, s corev1.ResourceQuotaStatus) bool {
	return q.Status.Used == nil || !equality.Semantic.DeepEqual(q.Status.Hard, s.Hard) ||
		!quotav1.Equals(q.Status.Used, s.Used)
}
