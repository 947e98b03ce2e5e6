package batch

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
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
		Fields: func(j *batchv1.Job) fields.Set {
			return fields.Set{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
		},
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
			return []any{j.Name, state(j), completions(j), runtime(j, time.Now()), kind.Age(j.CreationTimestamp), names,
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
// the user set stay; a conflict is found by validation.
func generateSelector(j *batchv1.Job) {
	labels := make(map[string]string, len(j.Spec.Template.Labels)+4)
	labels[legacyNameLabel], labels[batchv1.JobNameLabel] = j.Name, j.Name
	labels[legacyUIDLabel], labels[batchv1.ControllerUidLabel] = string(j.UID), string(j.UID)
	for k, v := range j.Spec.Template.Labels {
		labels[k] = v
	}
	j.Spec.Template.Labels = labels
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

func jobWarnings(_ context.Context, j, old *batchv1.Job) []string {
	if old != nil {
		return nil
	}
	if msgs := validation.IsDNS1123Label(j.Name); len(msgs) != 0 {
		return []string{
			fmt.Sprintf(
				"metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v",
				msgs)}
	}
	return nil
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

func runtime(j *batchv1.Job, now time.Time) string {
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
