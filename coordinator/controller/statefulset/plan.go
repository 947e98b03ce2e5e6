package statefulset

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// view is what one reconcile sees.
type view struct {
	set *appsv1.StatefulSet
	// current and update are names of revisions; the same when no update rolls.
	current, update string
	// pods are the set's, in no order.
	pods []*corev1.Pod
	// claim returns a claim of the set's namespace, nil when there is none.
	claim func(name string) *corev1.PersistentVolumeClaim
	now   time.Time
}

// todo is what to do, in this order.
type todo struct {
	create []int // ordinals
	// claim are pods that still wait: their claims may be missing.
	claim []*corev1.Pod
	// repair are pods whose labels, volumes or claims' owners are not theirs.
	repair []*corev1.Pod
	// handOver are pods to be scaled away, whose claims go with them.
	handOver []*corev1.Pod
	del      []*corev1.Pod
}

// plan brings the set one step further. Ordered sets create or delete one pod,
// when every one before it is available.
func (v *view) plan() (do todo) {
	if v.set.DeletionTimestamp != nil {
		return do
	}
	replicas, condemned := v.split()
	if v.replicas(replicas, &do) && v.scaleDown(v.firstUnavailable(replicas, condemned), condemned, &do) &&
		len(do.create)+len(do.del) == 0 {
		v.roll(replicas, &do)
	}
	return do
}

// split returns the pods that are to be, by ordinal and nil where one is
// missing, and those that are not, the highest first.
func (v *view) split() (replicas, condemned []*corev1.Pod) {
	start, count := ordinals(v.set)
	replicas = make([]*corev1.Pod, count)
	for _, p := range v.pods {
		if n := ordinalOf(p); wanted(v.set, n) {
			replicas[n-start] = p
		} else {
			condemned = append(condemned, p)
		}
	}
	slices.SortFunc(condemned, func(a, b *corev1.Pod) int { return cmp.Compare(ordinalOf(b), ordinalOf(a)) })
	return replicas, condemned
}

func (v *view) ordered() bool { return v.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement }

func (v *view) available(p *corev1.Pod) bool {
	if p == nil || p.DeletionTimestamp != nil {
		return false
	}
	ok, _ := controller.PodAvailable(p, v.set.Spec.MinReadySeconds, v.now)
	return ok
}

// firstUnavailable is the lowest pod that is not available, nil when that is
// one that does not exist, or when there is none.
func (v *view) firstUnavailable(replicas, condemned []*corev1.Pod) *corev1.Pod {
	for _, p := range replicas {
		if !v.available(p) {
			return p
		}
	}
	for _, p := range slices.Backward(condemned) {
		if !v.available(p) {
			return p
		}
	}
	return nil
}

// replicas creates what is missing and replaces what has ended. It returns
// false when an ordered set has to wait.
func (v *view) replicas(pods []*corev1.Pod, do *todo) (next bool) {
	start, _ := ordinals(v.set)
	for i, p := range pods {
		switch {
		case p == nil:
			if !v.blocked(start + i) {
				do.create = append(do.create, start+i)
			}
		case controller.PodTerminal(p):
			if p.DeletionTimestamp == nil {
				do.del = append(do.del, p)
			}
		case p.DeletionTimestamp != nil:
		default:
			if p.Status.Phase == corev1.PodPending && len(v.set.Spec.VolumeClaimTemplates) > 0 {
				do.claim = append(do.claim, p)
			}
			if (!v.ordered() || v.healthy(p)) && !v.isRight(p) {
				do.repair = append(do.repair, p)
			}
		}
		if v.ordered() && !v.healthy(p) {
			return false
		}
	}
	return true
}

func (v *view) healthy(p *corev1.Pod) bool {
	return v.available(p) && p.Status.Phase == corev1.PodRunning
}

// blocked tells whether a claim of the ordinal still belongs to the pod that
// was scaled away: the new one must not get it.
func (v *view) blocked(ordinal int) bool {
	if whenScaled, _ := retention(v.set); !whenScaled {
		return false
	}
	pod := &corev1.Pod{}
	pod.Name = podName(v.set, ordinal)
	return slices.ContainsFunc(v.claimsOf(pod),
		func(c *corev1.PersistentVolumeClaim) bool { return isStale(c, pod, podKind) })
}

// claimsOf returns those of a pod's claims that exist.
func (v *view) claimsOf(p *corev1.Pod) (out []*corev1.PersistentVolumeClaim) {
	for i := range v.set.Spec.VolumeClaimTemplates {
		if c := v.claim(claimName(v.set, v.set.Spec.VolumeClaimTemplates[i].Name, ordinalOf(p))); c != nil {
			out = append(out, c)
		}
	}
	return out
}

func (v *view) claimsRight(p *corev1.Pod) bool {
	return !slices.ContainsFunc(v.claimsOf(p),
		func(c *corev1.PersistentVolumeClaim) bool { return !isClaimRight(c, v.set, p) })
}

func (v *view) isRight(p *corev1.Pod) bool {
	return isIdentified(p) && mountsClaims(v.set, p) && v.claimsRight(p)
}

// scaleDown deletes the pods beyond the replicas. An ordered set deletes the
// highest while all others are available, or when it is the one that is not.
func (v *view) scaleDown(firstUnavailable *corev1.Pod, condemned []*corev1.Pod, do *todo) (next bool) {
	for _, p := range condemned {
		if !v.claimsRight(p) {
			do.handOver = append(do.handOver, p)
		}
	}
	for _, p := range condemned {
		switch {
		case p.DeletionTimestamp != nil && v.ordered():
			return false
		case p.DeletionTimestamp != nil:
		case v.ordered() && !v.healthy(p) && p != firstUnavailable:
			return false
		default:
			do.del = append(do.del, p)
			if v.ordered() {
				return false
			}
		}
	}
	return true
}

// roll deletes pods of other revisions, from the highest ordinal down to the
// partition: one at a time, or so many that no more than maxUnavailable are
// not available.
func (v *view) roll(replicas []*corev1.Pod, do *todo) {
	u := v.set.Spec.UpdateStrategy
	if u.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return
	}
	lowest := 0
	if u.RollingUpdate != nil {
		lowest = int(ptr.Deref(u.RollingUpdate.Partition, 0))
	}
	old := func(p *corev1.Pod) bool { // nil: it waits for a claim of the one before to go
		return p != nil && p.Labels[appsv1.StatefulSetRevisionLabel] != v.update && p.DeletionTimestamp == nil
	}
	if u.RollingUpdate == nil || u.RollingUpdate.MaxUnavailable == nil {
		for i := len(replicas) - 1; i >= lowest; i-- {
			if old(replicas[i]) {
				do.del = append(do.del, replicas[i])
				return
			}
			if !v.available(replicas[i]) {
				return
			}
		}
		return
	}
	left := maxUnavailable(u.RollingUpdate.MaxUnavailable, len(replicas))
	for _, p := range replicas {
		if !v.available(p) {
			left--
		}
	}
	for i := len(replicas) - 1; i >= lowest && left > 0; i-- {
		if old(replicas[i]) {
			do.del = append(do.del, replicas[i])
			left--
		}
	}
}

// maxUnavailable rounds percentages down, to 1 at least (KEP-961).
func maxUnavailable(limit *intstr.IntOrString, replicas int) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(limit, replicas, false)
	if err != nil { // validation lets no such value through
		return 1
	}
	return max(n, 1)
}

// revisionOf is the revision that a new pod of an ordinal gets: below the
// partition the one from before the update.
func (v *view) revisionOf(ordinal int) string {
	start, _ := ordinals(v.set)
	u := v.set.Spec.UpdateStrategy
	before := 0
	switch {
	case u.RollingUpdate != nil:
		before = int(ptr.Deref(u.RollingUpdate.Partition, 0))
	case u.Type == appsv1.RollingUpdateStatefulSetStrategyType:
		before = int(v.set.Status.CurrentReplicas)
	}
	if ordinal < start+before {
		return v.current
	}
	return v.update
}

// status counts; wait is the time until a ready pod becomes available.
func (v *view) status() (status appsv1.StatefulSetStatus, wait time.Duration) {
	status = appsv1.StatefulSetStatus{
		ObservedGeneration: v.set.Generation, CurrentRevision: v.current, UpdateRevision: v.update,
		CollisionCount: v.set.Status.CollisionCount, Conditions: v.set.Status.Conditions,
	}
	for _, p := range v.pods {
		status.Replicas++
		if p.Status.Phase == corev1.PodRunning && controller.PodReady(p) {
			status.ReadyReplicas++
			ok, left := controller.PodAvailable(p, v.set.Spec.MinReadySeconds, v.now)
			if ok {
				status.AvailableReplicas++
			} else if left > 0 && (wait == 0 || left < wait) {
				wait = left
			}
		}
		if p.DeletionTimestamp != nil {
			continue
		}
		if r := p.Labels[appsv1.StatefulSetRevisionLabel]; r == v.current {
			status.CurrentReplicas++
		}
		if p.Labels[appsv1.StatefulSetRevisionLabel] == v.update {
			status.UpdatedReplicas++
		}
	}
	_, count := ordinals(v.set)
	if n := int32(count); v.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType &&
		status.UpdatedReplicas == n && status.ReadyReplicas == n && status.Replicas == n {
		status.CurrentReplicas, status.CurrentRevision = status.UpdatedReplicas, status.UpdateRevision
	}
	return status, wait
}
