package batch

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// jobStatus is a write of a job's status. Most rules are about what changes only:
// a status that the spec has run away from stays writable elsewhere.
type jobStatus struct {
	job, old *batchv1.Job
	at       *field.Path
	errs     field.ErrorList
}

func validateJobStatus(_ context.Context, j, old *batchv1.Job) field.ErrorList {
	s := &jobStatus{job: j, old: old, at: field.NewPath("status")}
	s.counts()
	s.uncounted()
	s.conditions()
	s.times()
	s.indexes()
	s.pods()
	return s.errs
}

func (s *jobStatus) refuse(bad bool, name string, value any, why string) {
	if bad {
		s.errs = append(s.errs, field.Invalid(s.at.Child(name), value, why))
	}
}

// none stands for the value of conditions, which are long.
var none = field.OmitValueType{}

// is and was tell whether a condition is true now, and was before.
func (s *jobStatus) is(t batchv1.JobConditionType) bool  { return isTrue(s.job, t) }
func (s *jobStatus) was(t batchv1.JobConditionType) bool { return isTrue(s.old, t) }

func (s *jobStatus) turned(types ...batchv1.JobConditionType) bool {
	return slices.ContainsFunc(types, func(t batchv1.JobConditionType) bool { return s.is(t) != s.was(t) })
}

func finished(j *batchv1.Job) bool {
	return isTrue(j, batchv1.JobComplete) || isTrue(j, batchv1.JobFailed)
}

// ends: whether the job is over changes.
func (s *jobStatus) ends() bool { return finished(s.job) != finished(s.old) }

func (s *jobStatus) counts() {
	now, old := &s.job.Status, &s.old.Status
	for _, c := range []struct {
		name  string
		value int32
	}{
		{"active", now.Active}, {"succeeded", now.Succeeded}, {"failed", now.Failed},
		{"ready", ptr.Deref(now.Ready, 0)}, {"terminating", ptr.Deref(now.Terminating, 0)},
	} {
		s.errs = append(s.errs, apivalidation.ValidateNonnegativeField(int64(c.value), s.at.Child(c.name))...)
	}
	active, over := now.Active != old.Active, finished(s.job)
	s.refuse((s.ends() || active) && over && now.Active > 0, "active", now.Active, "active>0 is invalid for finished job")
}

// pods checks the counts of pods that still run, and that those of others only grow.
func (s *jobStatus) pods() {
	now, old := &s.job.Status, &s.old.Status
	terminating := ptr.Deref(now.Terminating, 0)
	s.refuse((s.ends() || !ptr.Equal(now.Terminating, old.Terminating)) && finished(s.job) && terminating > 0,
		"terminating", terminating, "terminating>0 is invalid for finished job")
	s.refuse((now.Active != old.Active || !ptr.Equal(now.Ready, old.Ready)) &&
		now.Ready != nil && *now.Ready > now.Active,
		"ready", ptr.Deref(now.Ready, 0), "cannot set more ready pods than active")
	s.refuse(now.Failed < old.Failed, "failed", now.Failed, "cannot decrease the failed counter")
	// An indexed job that is as wide as it is long may be made smaller.
	elastic := indexed(&s.job.Spec) && ptr.Equal(s.job.Spec.Completions, s.job.Spec.Parallelism)
	s.refuse(now.Succeeded < old.Succeeded && !elastic, "succeeded", now.Succeeded, "cannot decrease the succeeded counter")
}

func (s *jobStatus) uncounted() {
	u := s.job.Status.UncountedTerminatedPods
	if u == nil {
		return
	}
	p := s.at.Child("uncountedTerminatedPods")
	seen := sets.New[types.UID]()
	check := func(list []types.UID, p *field.Path) {
		for i, uid := range list {
			switch {
			case uid == "":
				s.errs = append(s.errs, field.Invalid(p.Index(i), uid, "must not be empty"))
			case seen.Has(uid):
				s.errs = append(s.errs, field.Duplicate(p.Index(i), uid))
			}
			seen.Insert(uid)
		}
	}
	check(u.Succeeded, p.Child("succeeded"))
	check(u.Failed, p.Child("failed"))
	changed := s.ends() || !equality.Semantic.DeepEqual(u, s.old.Status.UncountedTerminatedPods)
	s.refuse(changed && finished(s.job) && len(u.Succeeded)+len(u.Failed) > 0, "uncountedTerminatedPods", u,
		"must be empty for finished job")
}

func (s *jobStatus) conditions() {
	const complete, failed = batchv1.JobComplete, batchv1.JobFailed
	const target, success = batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet
	refuse := func(bad bool, why string) { s.refuse(bad, "conditions", none, why) }
	refuse(s.turned(complete, failed) && s.is(complete) && s.is(failed),
		"cannot set Complete=True and Failed=true conditions")
	refuse(s.turned(complete, target) && s.is(complete) && s.is(target),
		"cannot set Complete=True and FailureTarget=true conditions")
	failedIndexes := !ptr.Equal(s.job.Status.FailedIndexes, s.old.Status.FailedIndexes)
	refuse((s.turned(failed) || failedIndexes) && s.is(failed) && !s.is(target),
		"cannot set Failed=True condition without the FailureTarget=true condition")
	refuse(s.turned(complete, success) && s.is(complete) && !s.is(success),
		"cannot set Complete=True condition without the SuccessCriteriaMet=true condition")
	refuse(s.is(success) && s.is(failed), "cannot set SuccessCriteriaMet=True and Failed=true conditions")
	refuse(s.is(success) && s.is(target), "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")
	refuse(s.job.Spec.SuccessPolicy != nil && !s.is(success) && s.is(complete),
		"cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True")
	for _, t := range []batchv1.JobConditionType{failed, complete, target} {
		refuse(s.was(t) && !s.is(t), fmt.Sprintf("cannot disable the terminal %s=True condition", t))
	}
	refuse(s.was(success) && !s.is(success), "cannot disable the SuccessCriteriaMet=True condition")
	refuse(s.was(complete) && !s.was(success) && s.is(success),
		"cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions")
}

func (s *jobStatus) times() {
	now, old, spec := &s.job.Status, &s.old.Status, &s.job.Spec
	start, end := !ptr.Equal(now.StartTime, old.StartTime), !ptr.Equal(now.CompletionTime, old.CompletionTime)
	completes, complete := s.turned(batchv1.JobComplete), s.is(batchv1.JobComplete)
	s.refuse((completes || end) && now.CompletionTime != nil && !complete, "completionTime", now.CompletionTime,
		"cannot set completionTime when there is no Complete=True condition")
	if (completes || end) && now.CompletionTime == nil && complete {
		s.errs = append(s.errs, field.Required(s.at.Child("completionTime"), "completionTime is required for Complete jobs"))
	}
	backwards := now.StartTime != nil && now.CompletionTime != nil && now.CompletionTime.Before(now.StartTime)
	s.refuse((start || end) && backwards, "completionTime", now.CompletionTime, "must be equal to or after `startTime`")
	s.refuse(end && now.CompletionTime != nil && old.CompletionTime != nil, "completionTime", now.CompletionTime,
		"field is immutable")
	suspended := ptr.Deref(spec.Suspend, false)
	if empty := suspended && ptr.Equal(spec.Completions, ptr.To[int32](0)); (s.ends() || start) && !empty &&
		now.StartTime == nil && finished(s.job) {
		s.errs = append(s.errs, field.Required(s.at.Child("startTime"), "startTime is required for finished job"))
	}
	resumes := s.was(batchv1.JobSuspended) && slices.ContainsFunc(now.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobSuspended && c.Status == corev1.ConditionFalse
	})
	s.refuse(start && !resumes && old.StartTime != nil && !suspended, "startTime", now.StartTime,
		"field is immutable for unsuspended job once set")
}

func (s *jobStatus) indexes() {
	now, old, spec := &s.job.Status, &s.old.Status, &s.job.Spec
	done, lost := now.CompletedIndexes != old.CompletedIndexes, !ptr.Equal(now.FailedIndexes, old.FailedIndexes)
	failed := ptr.Deref(now.FailedIndexes, "")
	n := ptr.Deref(spec.Completions, 0)
	if spec.Completions != nil && done {
		if _, err := parseIndexes(now.CompletedIndexes, n); err != nil {
			s.refuse(true, "completedIndexes", now.CompletedIndexes, "error parsing completedIndexes: "+err.Error())
		}
	}
	if spec.Completions != nil && lost && spec.BackoffLimitPerIndex != nil {
		if _, err := parseIndexes(failed, n); err != nil {
			s.refuse(true, "failedIndexes", failed, "error parsing failedIndexes: "+err.Error())
		}
	}
	s.refuse(done && now.CompletedIndexes != "" && !indexed(spec), "completedIndexes", now.CompletedIndexes,
		"cannot set non-empty completedIndexes when non-indexed completion mode")
	s.refuse(lost && spec.BackoffLimitPerIndex == nil && now.FailedIndexes != nil, "failedIndexes", failed,
		"cannot set non-null failedIndexes when backoffLimitPerIndex is null")
	if spec.Completions != nil && (done || lost) {
		completed, _ := parseIndexes(now.CompletedIndexes, n) // what cannot be read was refused above
		other, _ := parseIndexes(failed, n)
		if i, both := overlap(completed, other); both {
			s.refuse(true, "failedIndexes", failed,
				fmt.Sprintf("failedIndexes and completedIndexes overlap at index: %d", i))
		}
	}
}

// interval is of indexes, both ends in it.
type interval struct{ first, last int }

// parseIndexes reads "1,3-5": intervals of indexes below n, in order. With an
// error it returns those before it.
func parseIndexes(text string, n int32) (out []interval, err error) {
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		i, err := parseInterval(part, n)
		if err != nil {
			return out, err
		}
		if k := len(out); k > 0 && out[k-1].last >= i.first {
			return out, fmt.Errorf("non-increasing order, previous: %d, current: %d", out[k-1].last, i.first)
		}
		out = append(out, i)
	}
	return out, nil
}

func parseInterval(text string, n int32) (interval, error) {
	ends := strings.Split(text, "-")
	if len(ends) > 2 {
		return interval{}, fmt.Errorf("the fragment %q violates the requirement that an index interval can have at most "+
			"two parts separated by '-'", text)
	}
	var at [2]int
	for i, end := range ends {
		x, err := strconv.Atoi(end)
		if err != nil {
			return interval{}, fmt.Errorf("cannot convert string to integer for index: %q", end)
		}
		if x >= int(n) {
			return interval{}, fmt.Errorf("too large index: %q", end)
		}
		at[i] = x
	}
	if len(ends) == 1 {
		return interval{at[0], at[0]}, nil
	}
	if at[0] >= at[1] {
		return interval{}, fmt.Errorf("non-increasing order, previous: %d, current: %d", at[0], at[1])
	}
	return interval{at[0], at[1]}, nil
}

// overlap returns the first index that is in both lists.
func overlap(a, b []interval) (int, bool) {
	for len(a) > 0 && len(b) > 0 {
		if a[0].first <= b[0].last && b[0].first <= a[0].last {
			return max(a[0].first, b[0].first), true
		}
		if a[0].first <= b[0].first {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return 0, false
}
