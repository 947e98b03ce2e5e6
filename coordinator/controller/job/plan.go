package job

import (
	"cmp"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/coordinator/controller"
)

const (
	// burst bounds how many pods one reconcile creates or deletes.
	burst                     = 500
	firstBackoff, lastBackoff = 10 * time.Second, 10 * time.Minute
)

// view is what one reconcile sees. job is a private copy.
type view struct {
	job  *batchv1.Job
	pods []*corev1.Pod
	// freed are pods whose finalizer is off already, though the cache shows it.
	freed map[types.UID]bool
	// failures are those in a row, also of pods that are gone.
	failures failure
	now      time.Time
}

// tally is the view counted.
type tally struct {
	active                     []*corev1.Pod
	ready, terminating         int32
	newSucceeded, newFailed    []*corev1.Pod
	succeeded, failed          int32
	before, done, failedIndex  indexes
	replaced                   map[int]*corev1.Pod // per index: the failed pod that the next one replaces
	finished                   *batchv1.JobCondition
	after                      time.Duration
	uncountedOK, uncountedFail map[types.UID]bool
}

func suspended(j *batchv1.Job) bool { return j.Spec.Suspend != nil && *j.Spec.Suspend }

// foreign tells whether another controller manages the Job (KEP-4368).
func foreign(j *batchv1.Job) bool {
	return j.Spec.ManagedBy != nil && *j.Spec.ManagedBy != batchv1.JobControllerName
}

func finished(j *batchv1.Job) bool {
	return isTrue(j, batchv1.JobComplete) != nil || isTrue(j, batchv1.JobFailed) != nil
}

func isTrue(j *batchv1.Job, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range j.Status.Conditions {
		if c := &j.Status.Conditions[i]; c.Type == t && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

// replaceFailedOnly: a pod that is being deleted is not replaced before it ended.
func replaceFailedOnly(j *batchv1.Job) bool {
	return j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batchv1.Failed ||
		j.Spec.PodFailurePolicy != nil
}

func podFailed(p *corev1.Pod, j *batchv1.Job) bool {
	if p.Status.Phase == corev1.PodFailed {
		return true
	}
	return !replaceFailedOnly(j) && p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded
}

func tracked(p *corev1.Pod) bool { return slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) }

// inRange tells whether a pod of an indexed Job has an index that counts.
func (v *view) inRange(p *corev1.Pod) bool {
	i := indexOf(p)
	return !indexed(v.job) || i != noIndex && i < int(*v.job.Spec.Completions)
}

func (v *view) countable(p *corev1.Pod) bool { return tracked(p) && !v.freed[p.UID] && v.inRange(p) }

func (v *view) tally() *tally {
	t := &tally{uncountedOK: map[types.UID]bool{}, uncountedFail: map[types.UID]bool{}}
	uncounted := v.job.Status.UncountedTerminatedPods
	for _, uid := range uncounted.Succeeded {
		t.uncountedOK[uid] = true
	}
	for _, uid := range uncounted.Failed {
		t.uncountedFail[uid] = true
	}
	ignored := int32(0)
	for _, p := range v.pods {
		switch {
		case controller.PodActive(p):
			t.active = append(t.active, p)
			if controller.PodReady(p) {
				t.ready++
			}
		case p.DeletionTimestamp != nil && !controller.PodTerminal(p):
			t.terminating++
		}
		switch {
		case !v.countable(p):
		case p.Status.Phase == corev1.PodSucceeded && !t.uncountedOK[p.UID]:
			t.newSucceeded = append(t.newSucceeded, p)
		case podFailed(p, v.job) && !t.uncountedFail[p.UID]:
			t.newFailed = append(t.newFailed, p)
			if !judge(v.job.Spec.PodFailurePolicy, p).counts() {
				ignored++
			}
		}
	}
	t.succeeded = v.job.Status.Succeeded + int32(len(t.newSucceeded)+len(uncounted.Succeeded))
	t.failed = v.job.Status.Failed + int32(len(t.newFailed)+len(uncounted.Failed)) - ignored
	v.countIndexes(t)
	t.finished = v.verdict(t)
	return t
}

func (v *view) countIndexes(t *tally) {
	if !indexed(v.job) {
		return
	}
	completions := int(*v.job.Spec.Completions)
	t.before = parseIndexes(v.job.Status.CompletedIndexes, completions)
	var ok, bad []int
	for _, p := range v.pods {
		if !tracked(p) || !v.inRange(p) {
			continue
		}
		if p.Status.Phase == corev1.PodSucceeded {
			ok = append(ok, indexOf(p))
		} else if perIndex(v.job) && v.failsIndex(p) {
			bad = append(bad, indexOf(p))
		}
	}
	t.done = t.before.union(indexesOf(ok))
	t.succeeded = int32(t.done.total())
	if !perIndex(v.job) {
		return
	}
	var earlier indexes
	if v.job.Status.FailedIndexes != nil {
		earlier = parseIndexes(*v.job.Status.FailedIndexes, completions)
	}
	t.failedIndex = earlier.union(indexesOf(bad))
	t.replaced = v.replaceable(t)
}

// failsIndex tells whether a pod's failure is its index's last (KEP-3850).
func (v *view) failsIndex(p *corev1.Pod) bool {
	if !podFailed(p, v.job) {
		return false
	}
	r := judge(v.job.Spec.PodFailurePolicy, p)
	return r.action == batchv1.PodFailurePolicyActionFailIndex ||
		r.counts() && count(p, batchv1.JobIndexFailureCountAnnotation) >= int(*v.job.Spec.BackoffLimitPerIndex)
}

// replaceable are the failed pods that still carry their index's failure count,
// until the pod that replaces them does.
func (v *view) replaceable(t *tally) map[int]*corev1.Pod {
	active := map[int]bool{}
	for _, p := range t.active {
		active[indexOf(p)] = true
	}
	out := map[int]*corev1.Pod{}
	for _, p := range v.pods {
		i := indexOf(p)
		if !v.countable(p) || !podFailed(p, v.job) || t.done.has(i) || t.failedIndex.has(i) || active[i] {
			continue
		}
		if have := out[i]; have == nil || failures(have) <= failures(p) && !finishedAt(p).Before(finishedAt(have)) {
			out[i] = p
		}
	}
	return out
}

func failures(p *corev1.Pod) int {
	return count(p, batchv1.JobIndexFailureCountAnnotation) + count(p, batchv1.JobIndexIgnoredFailureCountAnnotation)
}

// verdict is the condition that ends the Job now, nil while it goes on.
func (v *view) verdict(t *tally) *batchv1.JobCondition {
	j := v.job
	if c := isTrue(j, batchv1.JobSuccessCriteriaMet); c != nil {
		return c
	}
	if c := isTrue(j, batchv1.JobFailureTarget); c != nil {
		return v.condition(batchv1.JobFailed, c.Reason, c.Message)
	}
	fail := func(reason, message string) *batchv1.JobCondition {
		return v.condition(batchv1.JobFailureTarget, reason, message)
	}
	for _, p := range v.pods {
		if r := judge(j.Spec.PodFailurePolicy, p); r.action == batchv1.PodFailurePolicyActionFailJob && podFailed(p, j) {
			return fail(batchv1.JobReasonPodFailurePolicy, r.message)
		}
	}
	if t.failed > backoffLimit(j) || restartsExceed(j, v.pods) {
		return fail(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	}
	if d := j.Spec.ActiveDeadlineSeconds; d != nil && j.Status.StartTime != nil && !suspended(j) {
		left := j.Status.StartTime.Add(time.Duration(*d) * time.Second).Sub(v.now)
		if left <= 0 {
			return fail(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
		}
		t.after = left
	}
	if !indexed(j) {
		return nil
	}
	if perIndex(j) {
		n := t.failedIndex.total()
		switch {
		case j.Spec.MaxFailedIndexes != nil && n > int(*j.Spec.MaxFailedIndexes):
			return fail(batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
		case n > 0 && n+t.done.total() >= int(*j.Spec.Completions):
			return fail(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
		}
	}
	if message, met := succeededBy(j.Spec.SuccessPolicy, int(*j.Spec.Completions), t.done); met {
		return v.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy, message)
	}
	return nil
}

func (v *view) condition(t batchv1.JobConditionType, reason, message string) *batchv1.JobCondition {
	at := metav1.NewTime(v.now)
	return &batchv1.JobCondition{
		Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message,
		LastProbeTime: at, LastTransitionTime: at,
	}
}

func backoffLimit(j *batchv1.Job) int32 {
	if j.Spec.BackoffLimit == nil {
		return 6
	}
	return *j.Spec.BackoffLimit
}

// restartsExceed counts the restarts of containers that the agent restarts
// itself.
func restartsExceed(j *batchv1.Job, pods []*corev1.Pod) bool {
	if j.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	var n int32
	for _, p := range pods {
		if p.Status.Phase != corev1.PodRunning && p.Status.Phase != corev1.PodPending {
			continue
		}
		for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for i := range list {
				n += list[i].RestartCount
			}
		}
	}
	return n > 0 && n >= backoffLimit(j)
}

// todo is what to do about the active pods.
type todo struct {
	create  int
	indexes []int // of the pods to create, for an indexed Job
	del     []*corev1.Pod
	after   time.Duration
}

// plan decides how many pods to start or end while the Job goes on.
func (v *view) plan(t *tally) todo {
	j := v.job
	if suspended(j) {
		return todo{del: t.active}
	}
	active, want := int32(len(t.active)), parallelism(j)
	if c := j.Spec.Completions; c == nil {
		if t.succeeded > 0 {
			want = active
		}
	} else {
		want = max(min(*c-t.succeeded, want), 0)
	}
	if del := surplus(j, t.active, int(max(active-want, 0))); len(del) > 0 {
		return todo{del: del[:min(len(del), burst)]}
	}
	missing := want - active
	if replaceFailedOnly(j) {
		missing -= t.terminating
	}
	if missing <= 0 {
		return todo{}
	}
	if !perIndex(j) {
		if wait := backoff(v.failures, v.now); wait > 0 {
			return todo{after: wait}
		}
	}
	missing = min(missing, burst)
	if !indexed(j) {
		return todo{create: int(missing)}
	}
	return v.planIndexes(t, int(missing))
}

func parallelism(j *batchv1.Job) int32 {
	if j.Spec.Parallelism == nil {
		return 1
	}
	return *j.Spec.Parallelism
}

func (v *view) planIndexes(t *tally, missing int) todo {
	var busy []int
	for _, p := range v.pods {
		if controller.PodActive(p) || replaceFailedOnly(v.job) && p.DeletionTimestamp != nil &&
			!controller.PodTerminal(p) {
			if i := indexOf(p); i != noIndex {
				busy = append(busy, i)
			}
		}
	}
	free := t.done.union(t.failedIndex).union(indexesOf(busy)).missing(missing, int(*v.job.Spec.Completions))
	if !perIndex(v.job) {
		return todo{create: len(free), indexes: free}
	}
	var now []int
	var after time.Duration
	for _, i := range free {
		wait := time.Duration(0)
		if p := t.replaced[i]; p != nil {
			wait = backoff(failure{failures(p) + 1, finishedAt(p)}, v.now)
		}
		if wait == 0 {
			now = append(now, i)
		} else if after == 0 || wait < after {
			after = wait
		}
	}
	return todo{create: len(now), indexes: now, after: after}
}

// surplus are pods to end: those that double an index or have none that counts,
// then at least `least` in all: first those that have come least far, were ready for the
// shortest time, restarted most, are youngest.
func surplus(j *batchv1.Job, active []*corev1.Pod, least int) []*corev1.Pod {
	pods := slices.Clone(active)
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)),
			controller.ReadySince(b).Compare(controller.ReadySince(a).Time), controller.MoreRestarts(a, b),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time))
	})
	if !indexed(j) {
		return pods[:least]
	}
	var out, rest []*corev1.Pod
	seen := map[int]bool{}
	for _, p := range slices.Backward(pods) { // the best pod of an index stays
		i := indexOf(p)
		if i == noIndex || i >= int(*j.Spec.Completions) || seen[i] {
			out = append(out, p)
			continue
		}
		seen[i] = true
		rest = append(rest, p)
	}
	slices.Reverse(rest)
	return append(out, rest[:max(least-len(out), 0)]...)
}

// rank is how far a pod has come.
func rank(p *corev1.Pod) int {
	switch {
	case p.Status.Phase == corev1.PodRunning && controller.PodReady(p):
		return 3
	case p.Status.Phase == corev1.PodRunning:
		return 2
	case p.Spec.NodeName != "":
		return 1
	}
	return 0
}

// backoff is the time left until the next pod may start: 10 s after the first
// failure, doubled with each, 10 min at most.
func backoff(f failure, now time.Time) time.Duration {
	if f.times == 0 {
		return 0
	}
	d := firstBackoff
	for i := 1; i < f.times && d < lastBackoff; i++ {
		d *= 2
	}
	return max(f.last.Add(min(d, lastBackoff)).Sub(now), 0)
}

// finishedAt is when a pod's containers ended, as far as it tells.
func finishedAt(p *corev1.Pod) time.Time {
	if at := endOf(p); !at.IsZero() {
		return at
	}
	if c := controller.PodCondition(&p.Status, corev1.PodReady); c != nil && c.Status == corev1.ConditionFalse &&
		!c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if p.DeletionTimestamp != nil {
		at := p.DeletionTimestamp.Time
		if g := p.DeletionGracePeriodSeconds; g != nil {
			at = at.Add(-time.Duration(*g) * time.Second)
		}
		return at
	}
	return p.CreationTimestamp.Time
}

// endOf is when the last of a pod's containers ended, zero while one has not. Sidecars end
// last; other init containers do not count.
func endOf(p *corev1.Pod) (at time.Time) {
	statuses := slices.Clone(p.Status.ContainerStatuses)
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		i := slices.IndexFunc(p.Status.InitContainerStatuses,
			func(s corev1.ContainerStatus) bool { return s.Name == c.Name })
		if i >= 0 {
			statuses = append(statuses, p.Status.InitContainerStatuses[i])
		}
	}
	for i := range statuses {
		t := statuses[i].State.Terminated
		if t == nil || t.FinishedAt.IsZero() {
			return time.Time{}
		}
		if t.FinishedAt.After(at) {
			at = t.FinishedAt.Time
		}
	}
	return at
}
