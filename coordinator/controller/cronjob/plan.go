package cronjob

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// todo is what to do, beside writing status.
type todo struct {
	status batchv1.CronJobStatus
	events []event
	// expired are finished jobs beyond the history limits.
	expired []*batchv1.Job
	// replaced are active jobs to delete before the new one starts.
	replaced []corev1.ObjectReference
	// start is the time to make a job for; zero for none.
	start time.Time
	// after is when to look again, 0 when only a change can matter.
	after time.Duration
}

type event struct{ kind, reason, message string }

func (do *todo) tell(kind, reason, format string, args ...any) {
	do.events = append(do.events, event{kind, reason, fmt.Sprintf(format, args...)})
}

// plan compares the CronJob with its jobs and with the time. Jobs in
// status.active that are not in jobs are gone.
func plan(cj *batchv1.CronJob, jobs []*batchv1.Job, now time.Time) (do todo) {
	cj.Status.DeepCopyInto(&do.status)
	do.expired = expired(cj, jobs)
	do.observe(cj, jobs)
	if cj.DeletionTimestamp == nil {
		do.schedule(cj, now)
	}
	return do
}

// observe brings status up to what has become of the jobs.
func (do *todo) observe(cj *batchv1.CronJob, jobs []*batchv1.Job) {
	known := map[types.UID]bool{}
	for _, j := range jobs {
		known[j.UID] = true
		condition := finished(j)
		listed := isActive(cj.Status.Active, j.UID)
		if condition == "" {
			if !listed {
				do.tell(corev1.EventTypeWarning, "UnexpectedJob",
					"Saw a job that the controller did not create or forgot: %s", j.Name)
			}
			continue
		}
		if listed {
			do.drop(j.UID)
			do.tell(corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", j.Name, condition)
		}
		if at := j.Status.CompletionTime; condition == batchv1.JobComplete && at != nil &&
			(do.status.LastSuccessfulTime == nil || at.After(do.status.LastSuccessfulTime.Time)) {
			do.status.LastSuccessfulTime = at
		}
	}
	for _, ref := range cj.Status.Active {
		if !known[ref.UID] {
			do.drop(ref.UID)
			do.tell(corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", ref.Name)
		}
	}
}

func (do *todo) drop(uid types.UID) {
	do.status.Active = slices.DeleteFunc(do.status.Active, func(ref corev1.ObjectReference) bool { return ref.UID == uid })
}

// schedule decides whether a job is due.
func (do *todo) schedule(cj *batchv1.CronJob, now time.Time) {
	spec := &cj.Spec
	if spec.TimeZone != nil {
		if _, err := time.LoadLocation(*spec.TimeZone); err != nil {
			do.tell(corev1.EventTypeWarning, "UnknownTimeZone", "invalid timeZone: %q: %s", *spec.TimeZone, err)
			return
		}
	}
	if ptr.Deref(spec.Suspend, false) {
		return
	}
	schedule, err := parse(spec)
	if err != nil {
		do.tell(corev1.EventTypeWarning, "UnparseableSchedule", "unparseable schedule: %q : %s", spec.Schedule, err)
		return
	}
	due, err := timesOf(cj, schedule, now, true)
	if err != nil {
		do.tell(corev1.EventTypeWarning, "InvalidSchedule", "invalid schedule: %s : %s", spec.Schedule, err)
		return
	}
	do.after = untilNext(cj, schedule, now)
	if due.last.IsZero() {
		return
	}
	if due.missed > manyMissed {
		do.tell(corev1.EventTypeWarning, "TooManyMissedTimes", "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	do.due(cj, due.last, now)
}

// due starts the job of a time, unless it is late, there already, or kept back
// by one that still runs.
func (do *todo) due(cj *batchv1.CronJob, at, now time.Time) {
	name := jobName(cj, at)
	running := slices.ContainsFunc(do.status.Active, func(ref corev1.ObjectReference) bool { return ref.Name == name })
	switch deadline := cj.Spec.StartingDeadlineSeconds; {
	case deadline != nil && at.Add(time.Duration(*deadline)*time.Second).Before(now):
		do.tell(corev1.EventTypeWarning, "MissSchedule",
			"Missed scheduled time to start a job: %s", at.UTC().Format(time.RFC1123Z))
		return
	case running, cj.Status.LastScheduleTime.Equal(&metav1.Time{Time: at}):
		return
	case cj.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(do.status.Active) > 0:
		do.tell(corev1.EventTypeNormal, "JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
		return
	case cj.Spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		do.replaced = slices.Clone(do.status.Active)
	}
	do.start = at
}

// expired are the oldest of the finished jobs, beyond the history limits.
func expired(cj *batchv1.CronJob, jobs []*batchv1.Job) []*batchv1.Job {
	oldest := func(condition batchv1.JobConditionType, limit *int32) []*batchv1.Job {
		if limit == nil {
			return nil
		}
		var done []*batchv1.Job
		for _, j := range jobs {
			if finished(j) == condition && j.DeletionTimestamp == nil {
				done = append(done, j)
			}
		}
		slices.SortFunc(done, byStart)
		return done[:max(len(done)-int(*limit), 0)]
	}
	return append(oldest(batchv1.JobComplete, cj.Spec.SuccessfulJobsHistoryLimit),
		oldest(batchv1.JobFailed, cj.Spec.FailedJobsHistoryLimit)...)
}

// byStart puts the jobs that began first first, and those that never began last.
func byStart(a, b *batchv1.Job) int {
	switch x, y := a.Status.StartTime, b.Status.StartTime; {
	case x == nil && y != nil:
		return 1
	case x != nil && y == nil:
		return -1
	case x != nil && !x.Equal(y):
		return x.Compare(y.Time)
	}
	return cmp.Compare(a.Name, b.Name)
}

// finished is the condition with which a job has ended, "" when it has not.
func finished(j *batchv1.Job) batchv1.JobConditionType {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

func isActive(active []corev1.ObjectReference, uid types.UID) bool {
	return slices.ContainsFunc(active, func(ref corev1.ObjectReference) bool { return ref.UID == uid })
}

// jobName is the same for the same time, so that no job is made twice.
func jobName(cj *batchv1.CronJob, at time.Time) string {
	return fmt.Sprintf("%s-%d", cj.Name, at.Unix()/60)
}

// newJob makes the job of a time; its annotation tells the time in the
// CronJob's zone.
func newJob(cj *batchv1.CronJob, at time.Time) (*batchv1.Job, error) {
	zone, err := time.LoadLocation(ptr.Deref(cj.Spec.TimeZone, ""))
	if err != nil {
		return nil, fmt.Errorf("time zone: %w", err)
	}
	template := &cj.Spec.JobTemplate
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: jobName(cj, at), Namespace: cj.Namespace,
			Labels: maps.Clone(template.Labels), Annotations: maps.Clone(template.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(cj, ownKind)},
		},
		Spec: *template.Spec.DeepCopy(),
	}
	metav1.SetMetaDataAnnotation(&job.ObjectMeta, batchv1.CronJobScheduledTimestampAnnotation,
		at.In(zone).Format(time.RFC3339))
	return job, nil
}
