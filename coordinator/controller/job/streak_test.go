package job

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStreak: pods that are deleted after they failed have failed all the same; what the
// controller deletes itself has not, and a success ends the row.
func TestStreak(t *testing.T) {
	ended := func(after time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Terminated.FinishedAt = metav1.NewTime(now.Add(after))
		}
	}
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now.Add(4 * time.Second)} }
	freed := func(p *corev1.Pod) { p.Finalizers = nil }
	first := pod("a", corev1.PodFailed, noIndex, ended(1*time.Second))
	second := pod("b", corev1.PodFailed, noIndex, ended(2*time.Second))
	var s streak
	j := newJob(1, 1)
	for _, step := range []struct {
		name  string
		pods  []*corev1.Pod
		times int
		last  time.Duration
	}{
		{"one failed", []*corev1.Pod{first}, 1, 1 * time.Second},
		{"it is deleted", nil, 1, 1 * time.Second},
		{"the next failed", []*corev1.Pod{second}, 2, 2 * time.Second},
		{"and is deleted", nil, 2, 2 * time.Second},
		{"a running one is deleted by the controller",
			[]*corev1.Pod{pod("c", corev1.PodRunning, noIndex, deleted, freed)}, 2, 2 * time.Second},
		{"a running one is deleted by somebody", []*corev1.Pod{pod("d", corev1.PodRunning, noIndex, deleted)},
			3, 4 * time.Second},
		{"it is counted", []*corev1.Pod{pod("d", corev1.PodRunning, noIndex, deleted, freed)}, 3, 4 * time.Second},
		{"it is gone", nil, 3, 4 * time.Second},
		{"one succeeded", []*corev1.Pod{pod("e", corev1.PodSucceeded, noIndex, ended(5*time.Second))}, 0, 0},
		{"and is deleted", nil, 0, 0},
		{"one fails anew", []*corev1.Pod{pod("f", corev1.PodFailed, noIndex, ended(6*time.Second))}, 1, 6 * time.Second},
	} {
		want := failure{times: step.times}
		if step.times > 0 {
			want.last = now.Add(step.last)
		}
		got := s.follow(&view{job: j, pods: step.pods, now: now})
		if got.times != want.times || !got.last.Equal(want.last) {
			t.Errorf("%s: %v, not %v", step.name, got, want)
		}
	}
	again := newJob(1, 1, func(j *batchv1.Job) { j.UID = "another" })
	if got := s.follow(&view{job: again, now: now}); got.times != 0 {
		t.Errorf("another Job of that name has %v", got)
	}
}

// TestStreakIsBounded: what is remembered of pods that are gone does not grow, and the
// backoff is as long as it gets.
func TestStreakIsBounded(t *testing.T) {
	var s streak
	j := newJob(1, 1)
	var f failure
	for i := range 100 {
		s.follow(&view{job: j, now: now, pods: []*corev1.Pod{pod("p"+string(rune('0'+i)), corev1.PodFailed, noIndex)}})
		f = s.follow(&view{job: j, now: now})
	}
	if len(s.gone) > longest {
		t.Errorf("%d failures are remembered", len(s.gone))
	}
	if got, want := backoff(f, f.last), lastBackoff; got != want {
		t.Errorf("the backoff is %v, not %v", got, want)
	}
}
