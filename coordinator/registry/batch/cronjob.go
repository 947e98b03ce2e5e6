package batch

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the zones of spec.timeZone, where the machine has none (CJ-9)

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

// maxCronJobName leaves room for the suffix of a job's name, "-" and the minute
// that it is for.
const maxCronJobName = 52

func cronJob() kind.Kind {
	return kind.Of[batchv1.CronJob]{
		Names: kind.Names{
			GroupVersion: batchv1.SchemeGroupVersion, Resource: "cronjobs", Singular: "cronjob",
			ShortNames: []string{"cj"}, Categories: []string{"all"}, List: &batchv1.CronJobList{},
		},
		Default:        defaultCronJob,
		Create:         func(_ context.Context, c *batchv1.CronJob) { c.Status = batchv1.CronJobStatus{} },
		Validate:       func(_ context.Context, c *batchv1.CronJob) field.ErrorList { return validateCronJob(c) },
		ValidateUpdate: validateCronJobUpdate,
		Warnings:       cronJobWarnings,
		Spec:           func(c *batchv1.CronJob) any { return &c.Spec },
		Status: &kind.StatusOf[batchv1.CronJob]{
			Copy: func(to, from *batchv1.CronJob) { to.Status = from.Status },
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Schedule", "string", batchv1.CronJobSpec{}.SwaggerDoc()["schedule"]),
			kind.Column("Timezone", "string", batchv1.CronJobSpec{}.SwaggerDoc()["timeZone"]),
			kind.Column("Suspend", "boolean", batchv1.CronJobSpec{}.SwaggerDoc()["suspend"]),
			kind.Column("Active", "integer", batchv1.CronJobStatus{}.SwaggerDoc()["active"]),
			kind.Column("Last Schedule", "string", batchv1.CronJobStatus{}.SwaggerDoc()["lastScheduleTime"]),
			kind.AgeColumn(),
			kind.Wide("Containers", "string", "Names of each container in the template."),
			kind.Wide("Images", "string", "Images referenced by each container in the template."),
			kind.Wide("Selector", "string", batchv1.JobSpec{}.SwaggerDoc()["selector"]),
		},
		Row: cronJobRow,
	}.Kind()
}

func cronJobRow(c *batchv1.CronJob) []any {
	last, suspend := "<none>", "<unset>"
	if c.Status.LastScheduleTime != nil {
		last = kind.Age(*c.Status.LastScheduleTime)
	}
	if c.Spec.Suspend != nil {
		suspend = "False"
		if *c.Spec.Suspend {
			suspend = "True"
		}
	}
	j := &c.Spec.JobTemplate.Spec
	names, images := kind.ContainerCells(j.Template.Spec.Containers)
	return []any{
		c.Name, c.Spec.Schedule, ptr.Deref(c.Spec.TimeZone, "<none>"), suspend, int64(len(c.Status.Active)), last,
		kind.Age(c.CreationTimestamp),
		names, images, metav1.FormatLabelSelector(j.Selector),
	}
}

// defaultCronJob fills the CronJob's own fields and those of the pod template;
// the job's are filled when it is made.
func defaultCronJob(c *batchv1.CronJob) {
	s := &c.Spec
	podspec.DefaultTemplate(&s.JobTemplate.Spec.Template)
	if s.ConcurrencyPolicy == "" {
		s.ConcurrencyPolicy = batchv1.AllowConcurrent
	}
	fieldrule.Default(&s.Suspend, false)
	fieldrule.Default(&s.SuccessfulJobsHistoryLimit, 3)
	fieldrule.Default(&s.FailedJobsHistoryLimit, 1)
	if policy := s.JobTemplate.Spec.PodFailurePolicy; policy != nil {
		for i := range policy.Rules {
			defaultConditions(policy.Rules[i].OnPodConditions)
		}
	}
}

func validateCronJob(c *batchv1.CronJob) field.ErrorList {
	errs := validateCronJobSpec(&c.Spec, nil, field.NewPath("spec"))
	if len(c.Name) > maxCronJobName {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), c.Name, "must be no more than 52 characters"))
	}
	return errs
}

func validateCronJobUpdate(_ context.Context, c, old *batchv1.CronJob) field.ErrorList {
	return validateCronJobSpec(&c.Spec, &old.Spec, field.NewPath("spec"))
}

func validateCronJobSpec(s, old *batchv1.CronJobSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Schedule == "" {
		errs = append(errs, field.Required(p.Child("schedule"), ""))
	} else {
		errs = append(errs,
			validateSchedule(s, old != nil && strings.Contains(old.Schedule, "TZ"), p.Child("schedule"))...)
	}
	errs = append(errs,
		apivalidation.ValidateNonnegativeField(ptr.Deref(s.StartingDeadlineSeconds, 0),
			p.Child("startingDeadlineSeconds"))...)
	if s.TimeZone != nil && (old == nil || !ptr.Equal(old.TimeZone, s.TimeZone)) {
		errs = append(errs, validateTimeZone(*s.TimeZone, p.Child("timeZone"))...)
	}
	policies := []batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent}
	if !slices.Contains(policies, s.ConcurrencyPolicy) {
		errs = append(errs, field.NotSupported(p.Child("concurrencyPolicy"), s.ConcurrencyPolicy, policies))
	}
	errs = append(errs, validateJobTemplate(&s.JobTemplate.Spec, p.Child("jobTemplate", "spec"))...)
	errs = append(errs,
		apivalidation.ValidateNonnegativeField(int64(ptr.Deref(s.SuccessfulJobsHistoryLimit, 0)),
			p.Child("successfulJobsHistoryLimit"))...)
	return append(errs,
		apivalidation.ValidateNonnegativeField(int64(ptr.Deref(s.FailedJobsHistoryLimit, 0)),
			p.Child("failedJobsHistoryLimit"))...)
}

// validateJobTemplate checks a job that has no selector yet: each job gets one
// of its own.
func validateJobTemplate(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	errs := validateSpecParts(s, p)
	if s.Selector != nil {
		errs = append(errs, field.Invalid(p.Child("selector"), s.Selector, "`selector` will be auto-generated"))
	}
	if ptr.Deref(s.ManualSelector, false) {
		errs = append(errs, field.NotSupported(p.Child("manualSelector"), *s.ManualSelector, []string{"nil", "false"}))
	}
	return errs
}

// validateSchedule refuses zones in the schedule, but in one that had them.
func validateSchedule(s *batchv1.CronJobSpec, allowZone bool, p *field.Path) (errs field.ErrorList) {
	if err := parseSchedule(s.Schedule); err != nil {
		errs = append(errs, field.Invalid(p, s.Schedule, err.Error()))
	}
	switch zone := strings.Contains(s.Schedule, "TZ"); {
	case zone && !allowZone:
		errs = append(errs, field.Invalid(p, s.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"))
	case zone && s.TimeZone != nil:
		errs = append(errs, field.Invalid(p, s.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule"))
	}
	return errs
}

// parseSchedule turns the panic into an error with which the parser meets
// schedules such as "TZ=0".
func parseSchedule(schedule string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	_, err = cron.ParseStandard(schedule)
	return err
}

// zonePart is what a part of a zone's name may be, by the rules of
// https://data.iana.org/time-zones/theory.html#naming, and digits and "+" of old names.
var zonePart = regexp.MustCompile(`^[A-Za-z\.\-_0-9+]{1,14}$`)

func validateTimeZone(zone string, p *field.Path) (errs field.ErrorList) {
	if zone == "" {
		return field.ErrorList{field.Invalid(p, zone, "timeZone must be nil or non-empty string")}
	}
	for part := range strings.SplitSeq(zone, "/") {
		if part == "." || part == ".." || strings.HasPrefix(part, "-") || !zonePart.MatchString(part) {
			return field.ErrorList{field.Invalid(p, zone, "unknown time zone "+zone)}
		}
	}
	if strings.EqualFold(zone, "Local") {
		errs = append(errs, field.Invalid(p, zone, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"))
	}
	if _, err := time.LoadLocation(zone); err != nil {
		errs = append(errs, field.Invalid(p, zone, err.Error()))
	}
	return errs
}

func cronJobWarnings(_ context.Context, c, old *batchv1.CronJob) (warnings []string) {
	if old == nil {
		warnings = podspec.OwnerNameWarnings(c.Name)
	}
	if old == nil || c.Generation != old.Generation {
		p := field.NewPath("spec", "jobTemplate", "spec")
		warnings = append(warnings, specWarnings(&c.Spec.JobTemplate.Spec, p)...)
	}
	if old != nil && strings.Contains(c.Spec.Schedule, "TZ") {
		warnings = append(warnings, "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see "+
			"https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details")
	}
	return warnings
}
