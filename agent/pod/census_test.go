package pod

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStanding: what metrics call a pod.
func TestStanding(t *testing.T) {
	runs := testPod(corev1.RestartPolicyAlways, "a")
	deleted, over := runs.DeepCopy(), runs.DeepCopy()
	deleted.DeletionTimestamp = &metav1.Time{}
	over.Status.Phase = corev1.PodSucceeded
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		source string
		at     phase
		shown  shown
		want   Standing
	}{
		"runs":          {runs, SourceAPI, wanted, shown{}, Standing{false, "desired", "sync", true}},
		"of a manifest": {runs, SourceFile, wanted, shown{}, Standing{true, "desired", "sync", true}},
		"deleted":       {deleted, SourceAPI, wanted, shown{}, Standing{false, "desired", "terminating", true}},
		"evicted": {runs, SourceAPI, wanted, shown{ended: true},
			Standing{false, "desired", "terminating", true}},
		"over": {over, SourceAPI, wanted, shown{ended: true, released: true},
			Standing{false, "desired", "terminated", false}},
		"its manifest is gone": {runs, SourceFile, removed, shown{}, Standing{true, "orphan", "terminating", false}},
		"nobody's":             {nil, "", found, shown{}, Standing{false, "runtime_only", "sync", false}},
		"nobody's, ends":       {nil, "", abandoned, shown{}, Standing{false, "runtime_only", "terminating", false}},
	} {
		if got := standing(c.pod, c.source, c.at, c.shown); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
