package batch

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func validJob() *batchv1.Job {
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "pi", Namespace: "default", UID: "u1"},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "busybox:1"}},
		}}},
	}
	defaultJob(j)
	generateSelector(j)
	return j
}

func TestJobValidation(t *testing.T) {
	indexedJob := func(j *batchv1.Job) {
		j.Spec.CompletionMode, j.Spec.Completions = ptr.To(batchv1.IndexedCompletion), ptr.To[int32](5)
	}
	for _, c := range []struct {
		name   string
		change func(*batchv1.Job)
		want   string
	}{
		{"valid", func(*batchv1.Job) {}, ""},
		{"restart-always", func(j *batchv1.Job) { j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways },
			`spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`},
		{"indexed", indexedJob, ""},
		{"indexed-without-completions", func(j *batchv1.Job) { indexedJob(j); j.Spec.Completions = nil },
			"spec.completions: Required value: when completion mode is Indexed"},
		{"limit-per-index", func(j *batchv1.Job) { j.Spec.BackoffLimitPerIndex = ptr.To[int32](1) },
			"spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode"},
		{"exit-code-zero", func(j *batchv1.Job) {
			j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action:      batchv1.PodFailurePolicyActionFailJob,
				OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: "In", Values: []int32{0}}}}}
			j.Spec.PodReplacementPolicy = ptr.To(batchv1.Failed)
		}, "spec.podFailurePolicy.rules[0].onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator"},
		{"success-indexes", func(j *batchv1.Job) {
			indexedJob(j)
			j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: ptr.To("0-2,7")}}}
		}, `spec.successPolicy.rules[0].succeededIndexes: Invalid value: "0-2,7": error parsing succeededIndexes: too large index: "7"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := validJob()
			c.change(j)
			got := ""
			if err := validateJob(j, true).ToAggregate(); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestTemplateOfRunningJobIsImmutable(t *testing.T) {
	j, old := validJob(), validJob()
	j.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"}
	if errs := validateJobUpdate(t.Context(), j, old); len(errs) == 0 {
		t.Error("a running job's node selector was changed")
	}
	old.Spec.Suspend, j.Spec.Suspend = ptr.To(true), ptr.To(true)
	if errs := validateJobUpdate(t.Context(), j, old); len(errs) != 0 {
		t.Errorf("a suspended job's node selector may change: %v", errs)
	}
}

func TestCompletionsColumn(t *testing.T) {
	j := validJob()
	j.Status.Succeeded = 1
	if got := completions(j); got != "1/1" {
		t.Errorf("got %s", got)
	}
	j.Spec.Completions, j.Spec.Parallelism = nil, ptr.To[int32](3)
	if got := completions(j); got != "1/1 of 3" {
		t.Errorf("got %s", got)
	}
}
