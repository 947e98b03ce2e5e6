package job

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxUncounted bounds the UIDs in one status write.
const maxUncounted = 500

// ledger is the first half of counting: the pods noted as uncounted in the
// status, whose finalizers may then go.
type ledger struct {
	release []*corev1.Pod
	full    bool
}

// note writes newly finished pods into the status as uncounted (indexes: as
// completed), and lists the pods whose finalizer goes once that is stored.
func (v *view) note(t *tally) ledger {
	var l ledger
	status := &v.job.Status
	uncounted := status.UncountedTerminatedPods
	var done []int
	for _, p := range v.pods {
		if !tracked(p) || v.freed[p.UID] {
			continue
		}
		failed := podFailed(p, v.job)
		if !v.releasable(t, p, failed) {
			continue
		}
		l.release = append(l.release, p)
		switch {
		case p.Status.Phase == corev1.PodSucceeded && !t.uncountedFail[p.UID]:
			if indexed(v.job) {
				if v.inRange(p) && !t.before.has(indexOf(p)) {
					done = append(done, indexOf(p))
				}
			} else if !t.uncountedOK[p.UID] {
				uncounted.Succeeded = append(uncounted.Succeeded, p.UID)
			}
		case failed || t.finished != nil && t.finished.Type != batchv1.JobSuccessCriteriaMet:
			if !t.uncountedFail[p.UID] && v.inRange(p) && judge(v.job.Spec.PodFailurePolicy, p).counts() {
				uncounted.Failed = append(uncounted.Failed, p.UID)
			}
		}
		if len(done)+len(uncounted.Succeeded)+len(uncounted.Failed) >= maxUncounted {
			l.full = true
			break
		}
	}
	if indexed(v.job) {
		completed := t.before.union(indexesOf(done))
		status.Succeeded, status.CompletedIndexes = int32(completed.total()), completed.String()
		if perIndex(v.job) {
			failed := t.failedIndex.String()
			status.FailedIndexes = &failed
		}
	}
	return l
}

func (v *view) releasable(t *tally, p *corev1.Pod, failed bool) bool {
	if v.job.DeletionTimestamp != nil || t.finished != nil || p.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if !failed {
		return false
	}
	held := t.replaced[indexOf(p)]
	return held == nil || held.UID != p.UID
}

// countReleased is the second half: uncounted pods whose finalizer is gone move to the
// counters. It tells whether that changed the status.
func countReleased(status *batchv1.JobStatus, held map[types.UID]bool) bool {
	uncounted := status.UncountedTerminatedPods
	ok, bad := len(uncounted.Succeeded), len(uncounted.Failed)
	free := func(uid types.UID) bool { return !held[uid] }
	uncounted.Succeeded = slices.DeleteFunc(uncounted.Succeeded, free)
	uncounted.Failed = slices.DeleteFunc(uncounted.Failed, free)
	status.Succeeded += int32(ok - len(uncounted.Succeeded))
	status.Failed += int32(bad - len(uncounted.Failed))
	return ok != len(uncounted.Succeeded) || bad != len(uncounted.Failed)
}

// announce stores the interim condition of a Job that ends (KEP-3998,
// KEP-3939), and turns it into the terminal one.
func (v *view) announce(t *tally) {
	if t.finished == nil {
		return
	}
	switch c := t.finished; c.Type {
	case batchv1.JobFailureTarget:
		v.job.Status.Conditions = append(v.job.Status.Conditions, *c)
		t.finished = v.condition(batchv1.JobFailed, c.Reason, c.Message)
	case batchv1.JobSuccessCriteriaMet:
		if isTrue(v.job, batchv1.JobSuccessCriteriaMet) == nil {
			v.job.Status.Conditions = append(v.job.Status.Conditions, *c)
		}
		t.finished = v.condition(batchv1.JobComplete, c.Reason, c.Message)
	}
}

// enact ends the Job when nothing is left to count or to wait for.
func (v *view) enact(t *tally, l ledger) bool {
	uncounted := v.job.Status.UncountedTerminatedPods
	if t.finished == nil || l.full || len(uncounted.Succeeded)+len(uncounted.Failed) > 0 || t.terminating > 0 {
		return false
	}
	v.setCondition(*t.finished)
	if t.finished.Type == batchv1.JobComplete {
		at := t.finished.LastTransitionTime
		v.job.Status.CompletionTime = &at
	}
	return true
}

// setCondition tells whether it changed anything; a condition that is false
// from the start is not stored.
func (v *view) setCondition(c batchv1.JobCondition) bool {
	list := &v.job.Status.Conditions
	i := slices.IndexFunc(*list, func(h batchv1.JobCondition) bool { return h.Type == c.Type })
	switch {
	case i < 0 && c.Status == corev1.ConditionFalse:
		return false
	case i < 0:
		*list = append(*list, c)
		return true
	}
	h := (*list)[i]
	if h.Status == c.Status && h.Reason == c.Reason && h.Message == c.Message {
		return false
	}
	(*list)[i] = c
	return true
}
