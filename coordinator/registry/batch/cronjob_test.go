package batch

import (
	"context"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func validCronJob() *batchv1.CronJob {
	c := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "default"}}
	c.Spec.Schedule = "* * * * *"
	c.Spec.JobTemplate.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyOnFailure,
		Containers: []corev1.Container{{Name: "c", Image: "busybox:1"}}}
	defaultCronJob(c)
	return c
}

func TestCronJobDefaults(t *testing.T) {
	s := validCronJob().Spec
	if s.ConcurrencyPolicy != batchv1.AllowConcurrent || *s.Suspend || *s.SuccessfulJobsHistoryLimit != 3 ||
		*s.FailedJobsHistoryLimit != 1 {
		t.Errorf("got %+v", s)
	}
}

func TestCronJobValidation(t *testing.T) {
	const noZone = `cannot use TZ or CRON_TZ in schedule, use timeZone field instead`
	for _, c := range []struct {
		name   string
		change func(*batchv1.CronJob)
		want   string // "" for valid
	}{
		{"CJ-3", func(*batchv1.CronJob) {}, ""},
		{"CJ-2", func(c *batchv1.CronJob) { c.Name = strings.Repeat("a", 53) },
			`metadata.name: Invalid value: "` + strings.Repeat("a", 53) + `": must be no more than 52 characters`},
		{"CJ-4", func(c *batchv1.CronJob) { c.Spec.Schedule = "0 0 13 jan sun" }, ""},
		{"CJ-4-six", func(c *batchv1.CronJob) { c.Spec.Schedule = "0 0 0 13 1 0" },
			`spec.schedule: Invalid value: "0 0 0 13 1 0": expected exactly 5 fields, found 6: [0 0 0 13 1 0]`},
		{"CJ-5", func(c *batchv1.CronJob) { c.Spec.Schedule = "@midnight" }, ""},
		{"no-schedule", func(c *batchv1.CronJob) { c.Spec.Schedule = "" }, "spec.schedule: Required value"},
		{"CJ-8", func(c *batchv1.CronJob) { c.Spec.TimeZone = ptr.To("Etc/UTC") }, ""},
		{"CJ-8-unknown", func(c *batchv1.CronJob) { c.Spec.TimeZone = ptr.To("Asia/Nowhere") },
			`spec.timeZone: Invalid value: "Asia/Nowhere": unknown time zone Asia/Nowhere`},
		{"CJ-8-path", func(c *batchv1.CronJob) { c.Spec.TimeZone = ptr.To("../etc") }, `spec.timeZone: Invalid value: "../etc": unknown time zone ../etc`},
		{"CJ-8-empty", func(c *batchv1.CronJob) { c.Spec.TimeZone = ptr.To("") },
			`spec.timeZone: Invalid value: "": timeZone must be nil or non-empty string`},
		{"CJ-8-local", func(c *batchv1.CronJob) { c.Spec.TimeZone = ptr.To("Local") },
			`spec.timeZone: Invalid value: "Local": timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones`},
		{"CJ-10", func(c *batchv1.CronJob) { c.Spec.Schedule = "TZ=UTC 0 * * * *" },
			`spec.schedule: Invalid value: "TZ=UTC 0 * * * *": ` + noZone},
		{"policy", func(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = "x" },
			`spec.concurrencyPolicy: Unsupported value: "x": supported values: "Allow", "Forbid", "Replace"`},
		{"deadline", func(c *batchv1.CronJob) { c.Spec.StartingDeadlineSeconds = ptr.To[int64](-1) },
			"spec.startingDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0"},
		{"selector", func(c *batchv1.CronJob) { c.Spec.JobTemplate.Spec.ManualSelector = ptr.To(true) },
			`spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: "nil", "false"`},
		{"restart-policy", func(c *batchv1.CronJob) {
			c.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
		}, `spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cj := validCronJob()
			c.change(cj)
			got := ""
			if err := validateCronJob(cj).ToAggregate(); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestOldZoneStays: what was stored before TZ was refused may be updated.
func TestOldZoneStays(t *testing.T) { // CJ-10
	c, old := validCronJob(), validCronJob()
	c.Spec.Schedule, old.Spec.Schedule = "TZ=UTC 1 * * * *", "TZ=UTC 0 * * * *"
	if errs := validateCronJobUpdate(context.Background(), c, old); len(errs) != 0 {
		t.Errorf("got %v", errs)
	}
	c.Spec.TimeZone = ptr.To("Etc/UTC")
	if errs := validateCronJobUpdate(context.Background(), c, old); len(errs) != 1 {
		t.Errorf("got %v", errs)
	}
}
