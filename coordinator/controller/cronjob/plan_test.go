package cronjob

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func at(text string) time.Time {
	t, err := time.Parse("2006-01-02 15:04:05", "2026-05-04 "+text)
	if err != nil {
		panic(err)
	}
	return t
}

// every makes a CronJob of a schedule that was created at 08:30:00.
func every(schedule string, change ...func(*batchv1.CronJob)) *batchv1.CronJob {
	cj := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "cj", Namespace: "ns", UID: "cj", CreationTimestamp: metav1.NewTime(at("08:30:00"))},
		Spec: batchv1.CronJobSpec{Schedule: schedule, ConcurrencyPolicy: batchv1.AllowConcurrent, TimeZone: ptr.To("UTC"),
			SuccessfulJobsHistoryLimit: ptr.To[int32](3), FailedJobsHistoryLimit: ptr.To[int32](1)},
	}
	for _, c := range change {
		c(cj)
	}
	return cj
}

func policy(p batchv1.ConcurrencyPolicy) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) { cj.Spec.ConcurrencyPolicy = p }
}
func deadline(s int64) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) { cj.Spec.StartingDeadlineSeconds = &s }
}
func last(text string) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) { cj.Status.LastScheduleTime = ptr.To(metav1.NewTime(at(text))) }
}
func zone(name string) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) { cj.Spec.TimeZone = &name }
}
func active(names ...string) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) {
		for _, n := range names {
			cj.Status.Active = append(cj.Status.Active,
				corev1.ObjectReference{Name: n, Namespace: "ns", UID: types.UID(n)})
		}
	}
}

func job(name string, condition batchv1.JobConditionType, start string) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)}}
	if start != "" {
		j.Status.StartTime = ptr.To(metav1.NewTime(at(start)))
	}
	if condition != "" {
		j.Status.Conditions = []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue}}
	}
	if condition == batchv1.JobComplete {
		j.Status.CompletionTime = j.Status.StartTime
	}
	return j
}

func TestSchedule(t *testing.T) {
	for _, tt := range []struct {
		name  string
		cj    *batchv1.CronJob
		now   string
		start string // "" for none
		after time.Duration
		event string
	}{
		{"not-yet", every("0 * * * *"), "08:45:00", "", 15*time.Minute + late, ""},
		{"due", every("0 * * * *"), "09:00:00", "09:00:00", time.Hour + late, ""},
		{"done", every("0 * * * *", last("09:00:00")), "09:00:01", "", 59*time.Minute + 59*time.Second + late, ""},
		{"done-by-name", every("0 * * * *", active("cj-29631420")), "09:00:00", "", time.Hour + late, ""},
		{"suspended", every("0 * * * *", func(cj *batchv1.CronJob) { cj.Spec.Suspend = ptr.To(true) }),
			"09:00:00", "", 0, ""},
		{"CJ-8", every("0 12 * * *", zone("Asia/Tokyo")), "08:45:00", "", 18*time.Hour + 15*time.Minute + late, ""},
		{"CJ-8-unknown", every("0 12 * * *", zone("Asia/Nowhere")), "08:45:00", "", 0, "UnknownTimeZone"},
		{"CJ-14", every("* * * * *"), "10:21:00", "10:21:00", time.Minute + late, "TooManyMissedTimes"},
		{"few-missed", every("* * * * *"), "09:21:30", "09:21:00", 30*time.Second + late, ""},
		{"CJ-18", every("* * * * *", deadline(200)), "10:21:00", "10:21:00", time.Minute + late, ""},
		{"late", every("0 * * * *", deadline(10)), "09:00:11", "", 59*time.Minute + 49*time.Second + late, ""},
		{"CJ-16", every("* * * * *", policy(batchv1.ForbidConcurrent), active("x")), "08:31:00",
			"", time.Minute + late, "JobAlreadyActive"},
		{"never", every("59 23 31 2 *"), "08:31:00", "", 0, "InvalidSchedule"},
		{"unparseable", every("nonsense"), "08:31:00", "", 0, "UnparseableSchedule"},
		{"panic", every("TZ=0"), "08:31:00", "", 0, "UnparseableSchedule"},
		{"CJ-5", every("@hourly"), "09:00:00", "09:00:00", time.Hour + late, ""},
		{"CJ-6", every("0 9 13 * 1"), "09:00:00", "09:00:00", 7*24*time.Hour + late, ""}, // a Monday
	} {
		t.Run(tt.name, func(t *testing.T) {
			jobs := []*batchv1.Job{}
			for _, ref := range tt.cj.Status.Active {
				jobs = append(jobs, job(ref.Name, "", ""))
			}
			do := plan(tt.cj, jobs, at(tt.now))
			want := time.Time{}
			if tt.start != "" {
				want = at(tt.start)
			}
			var reasons []string
			for _, e := range do.events {
				reasons = append(reasons, e.reason)
			}
			if !do.start.Equal(want) || do.after != tt.after || strings.Join(reasons, ",") != tt.event {
				t.Errorf("start %v, after %v, events %v", do.start, do.after, do.events)
			}
		})
	}
}

func TestReplace(t *testing.T) {
	do := plan(every("* * * * *", policy(batchv1.ReplaceConcurrent), active("x")),
		[]*batchv1.Job{job("x", "", "")}, at("08:31:00"))
	if do.start.IsZero() || len(do.replaced) != 1 || do.replaced[0].Name != "x" {
		t.Errorf("got %+v", do)
	}
}

func TestObserve(t *testing.T) {
	cj := every("0 * * * *", active("runs", "done", "gone"))
	do := plan(cj, []*batchv1.Job{
		job("runs", "", ""), job("done", batchv1.JobComplete, "08:31:00"), job("strange", "", ""),
		job("earlier", batchv1.JobComplete, "08:30:30"),
	}, at("08:32:00"))
	if len(do.status.Active) != 1 || do.status.Active[0].Name != "runs" || !do.status.LastSuccessfulTime.Time.Equal(at("08:31:00")) {
		t.Errorf("status %+v", do.status)
	}
	want := []event{
		{"Normal", "SawCompletedJob", "Saw completed job: done, condition: Complete"},
		{"Warning", "UnexpectedJob", "Saw a job that the controller did not create or forgot: strange"},
		{"Normal", "MissingJob", "Active job went missing: gone"},
	}
	if len(do.events) != len(want) {
		t.Fatalf("events %v", do.events)
	}
	for i := range want {
		if do.events[i] != want[i] {
			t.Errorf("event %+v, want %+v", do.events[i], want[i])
		}
	}
	if len(cj.Status.Active) != 3 {
		t.Error("the shared object was changed")
	}
}

func TestHistoryLimits(t *testing.T) {
	do := plan(every("0 * * * *"), []*batchv1.Job{
		job("c5", batchv1.JobComplete, "08:35:00"), job("c1", batchv1.JobComplete, "08:31:00"),
		job("c3", batchv1.JobComplete, "08:33:00"),
		job("c4", batchv1.JobComplete, "08:34:00"), job("c2", batchv1.JobComplete, "08:32:00"),
		job("f1", batchv1.JobFailed, "08:31:00"), job("f2", batchv1.JobFailed, "08:32:00"),
		job("f0", batchv1.JobFailed, ""), job("r", "", ""),
	}, at("08:40:00"))
	var names []string
	for _, j := range do.expired {
		names = append(names, j.Name)
	}
	if got := strings.Join(names, " "); got != "c1 c2 f1 f2" {
		t.Errorf("expired %s", got)
	}
}

func TestNewJob(t *testing.T) { // CJ-2
	cj := every("* * * * *", zone("Asia/Tokyo"))
	cj.Spec.JobTemplate.Labels = map[string]string{"a": "b"}
	j, err := newJob(cj, at("09:00:00"))
	if err != nil || j.Name != "cj-29631420" || j.Labels["a"] != "b" ||
		j.Annotations[batchv1.CronJobScheduledTimestampAnnotation] != "2026-05-04T18:00:00+09:00" ||
		!metav1.IsControlledBy(j, cj) {
		t.Errorf("got %+v, %v", j, err)
	}
}
