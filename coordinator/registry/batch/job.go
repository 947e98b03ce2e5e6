package batch

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

// The labels that tie pods to their job, and the names they had before v1.27.
const (
	legacyUIDLabel  = "controller-uid"
	legacyNameLabel = "job-name"
)

// Kinds lists the group's kinds.
func Kinds() []kind.Kind { return []kind.Kind{job(), cronJob()} }

// orphansPods warns who deletes a job and does not say what becomes of its pods.
const orphansPods = "child pods are preserved by default when jobs are deleted; " +
	"set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"

// jobREST deletes jobs with that warning.
type jobREST struct{ *kind.REST }

func (r jobREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc,
	options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	warnOrphans(ctx, options)
	return r.REST.Delete(ctx, name, validate, options)
}

func (r jobREST) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc,
	options *metav1.DeleteOptions, list *internalversion.ListOptions) (runtime.Object, error) {
	warnOrphans(ctx, options)
	return r.REST.DeleteCollection(ctx, validate, options, list)
}

func warnOrphans(ctx context.Context, options *metav1.DeleteOptions) {
	//lint:ignore SA1019 old clients say it by orphanDependents
	if options != nil && options.PropagationPolicy == nil && options.OrphanDependents == nil {
		warning.AddWarning(ctx, "", orphansPods)
	}
}

func job() kind.Kind {
	return kind.Of[batchv1.Job]{
		Names: kind.Names{
			GroupVersion: batchv1.SchemeGroupVersion, Resource: "jobs", Singular: "job", Categories: []string{"all"},
			List: &batchv1.JobList{},
		},
		Default: defaultJob,
		Create: func(_ context.Context, j *batchv1.Job) {
			if !ptr.Deref(j.Spec.ManualSelector, false) {
				generateSelector(j)
			}
			j.Status = batchv1.JobStatus{}
		},
		Validate:       func(_ context.Context, j *batchv1.Job) field.ErrorList { return validateJob(j, true) },
		ValidateUpdate: validateJobUpdate,
		Warnings:       jobWarnings,
		Spec:           func(j *batchv1.Job) any { return &j.Spec },
		Status: &kind.StatusOf[batchv1.Job]{
			Copy:     func(to, from *batchv1.Job) { to.Status = from.Status },
			Validate: validateJobStatus,
		},
		// batch/v1 orphans its pods unless the client says otherwise, as it always has.
		GCPolicy: rest.OrphanDependents,
		Main:     func(_ *kind.Env, _ kind.Stores, main *kind.REST) rest.Storage { return jobREST{main} },
		Fields: func(j *batchv1.Job) fields.Set {
			return fields.Set{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
		},
		RefuseField: func(label string) error { return fmt.Errorf("field label %q not supported for Job", label) },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Status", "string", "Status of the job."),
			kind.Column("Completions", "string", batchv1.JobStatus{}.SwaggerDoc()["succeeded"]),
			kind.Column("Duration", "string", "Time required to complete the job."),
			kind.AgeColumn(),
			kind.Wide("Containers", "string", "Names of each container in the template."),
			kind.Wide("Images", "string", "Images referenced by each container in the template."),
			kind.Wide("Selector", "string", batchv1.JobSpec{}.SwaggerDoc()["selector"]),
		},
		Row: func(j *batchv1.Job) []any {
			names, images := kind.ContainerCells(j.Spec.Template.Spec.Containers)
			return []any{j.Name, state(j), completions(j), elapsed(j, time.Now()), kind.Age(j.CreationTimestamp), names,
				images, metav1.FormatLabelSelector(j.Spec.Selector)}
		},
	}.Kind()
}

func defaultJob(j *batchv1.Job) {
	s := &j.Spec
	podspec.DefaultTemplate(&s.Template)
	if s.Completions == nil && s.Parallelism == nil {
		s.Completions = ptr.To[int32](1)
	}
	fieldrule.Default(&s.Parallelism, 1)
	if s.BackoffLimitPerIndex != nil {
		fieldrule.Default(&s.BackoffLimit, math.MaxInt32)
	}
	fieldrule.Default(&s.BackoffLimit, 6)
	if len(j.Labels) == 0 && s.Template.Labels != nil {
		j.Labels = s.Template.Labels
	}
	fieldrule.Default(&s.CompletionMode, batchv1.NonIndexedCompletion)
	fieldrule.Default(&s.Suspend, false)
	fieldrule.Default(&s.ManualSelector, false)
	if s.PodFailurePolicy != nil {
		fieldrule.Default(&s.PodReplacementPolicy, batchv1.Failed)
		for i := range s.PodFailurePolicy.Rules {
			defaultConditions(s.PodFailurePolicy.Rules[i].OnPodConditions)
		}
	}
	fieldrule.Default(&s.PodReplacementPolicy, batchv1.TerminatingOrFailed)
}

func defaultConditions(patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) {
	for i := range patterns {
		if patterns[i].Status == "" {
			patterns[i].Status = corev1.ConditionTrue
		}
	}
}

// generateSelector makes the job select its pods by its own UID. Labels that
// the user set stay; a conflict is found by validation. It adds to the template's map
// of labels, which is the job's too when the job has no labels of its own (defaultJob):
// such a job has these labels as its pods do.
func generateSelector(j *batchv1.Job) {
	labels := j.Spec.Template.Labels
	if labels == nil {
		labels = map[string]string{}
		j.Spec.Template.Labels = labels
	}
	for key, value := range map[string]string{
		legacyNameLabel: j.Name, batchv1.JobNameLabel: j.Name,
		legacyUIDLabel: string(j.UID), batchv1.ControllerUidLabel: string(j.UID),
	} {
		if _, set := labels[key]; !set {
			labels[key] = value
		}
	}
	selector := &metav1.LabelSelector{}
	if j.Spec.Selector != nil {
		selector = j.Spec.Selector.DeepCopy()
	}
	if selector.MatchLabels == nil {
		selector.MatchLabels = map[string]string{}
	}
	if _, ok := selector.MatchLabels[batchv1.ControllerUidLabel]; !ok {
		selector.MatchLabels[batchv1.ControllerUidLabel] = string(j.UID)
	}
	j.Spec.Selector = selector
}

// Above both, an indexed job may be more than its status can hold.
const (
	longCompletions = 100_000
	longParallelism = 10_000
)

func jobWarnings(_ context.Context, j, old *batchv1.Job) (warnings []string) {
	if old == nil {
		warnings = podspec.OwnerNameWarnings(j.Name)
	}
	if old == nil || j.Generation != old.Generation {
		warnings = append(warnings, specWarnings(&j.Spec, field.NewPath("spec"))...)
	}
	return warnings
}

// specWarnings are those of a job, or of what a CronJob makes jobs from.
func specWarnings(s *batchv1.JobSpec, p *field.Path) (warnings []string) {
	if ptr.Deref(s.CompletionMode, "") == batchv1.IndexedCompletion &&
		ptr.Deref(s.Completions, 0) > longCompletions && ptr.Deref(s.Parallelism, 0) > longParallelism {
		warnings = append(warnings, p.String()+": In Indexed Jobs with a number of completions higher than 10^5 and a "+
			"parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of "+
			"indexes fail")
	}
	return append(warnings, podspec.TemplateWarnings(&s.Template, p.Child("template"))...)
}

// state is the STATUS column.
func state(j *batchv1.Job) string {
	switch {
	case isTrue(j, batchv1.JobComplete):
		return "Complete"
	case isTrue(j, batchv1.JobFailed):
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	}
	for _, c := range []batchv1.JobConditionType{batchv1.JobSuspended, batchv1.JobFailureTarget,
		batchv1.JobSuccessCriteriaMet} {
		if isTrue(j, c) {
			return string(c)
		}
	}
	return "Running"
}

func completions(j *batchv1.Job) string {
	if j.Spec.Completions != nil {
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
	}
	if parallelism := ptr.Deref(j.Spec.Parallelism, 0); parallelism > 1 {
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, parallelism)
	}
	return fmt.Sprintf("%d/1", j.Status.Succeeded)
}

func elapsed(j *batchv1.Job, now time.Time) string {
	if j.Status.StartTime == nil {
		return ""
	}
	if j.Status.CompletionTime != nil {
		now = j.Status.CompletionTime.Time
	}
	return duration.HumanDuration(now.Sub(j.Status.StartTime.Time))
}

func isTrue(j *batchv1.Job, t batchv1.JobConditionType) bool {
	for _, c := range j.Status.Conditions {
		if c.Type == t {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
