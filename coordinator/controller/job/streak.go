package job

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// failure is how often pods failed in a row, and when last.
type failure struct {
	times int
	last  time.Time
}

// longest is how many failures make the backoff as long as it gets.
const longest = 7

// streak remembers the failures of a Job since its last success: also those of pods that
// were deleted since, by kubectl or a program that tidies up. Such a Job backs off all the same.
type streak struct {
	job     types.UID
	success time.Time
	failed  map[types.UID]time.Time // of the pods that are there
	gone    []time.Time             // of those that are not, the newest at most
}

// follow takes the Job's pods in and returns the failures in a row.
func (s *streak) follow(v *view) failure {
	if s.job != v.job.UID {
		*s = streak{job: v.job.UID}
	}
	failed := map[types.UID]time.Time{}
	for _, p := range v.pods {
		switch at := finishedAt(p); {
		case p.Status.Phase == corev1.PodSucceeded && at.After(s.success):
			s.success = at
		case s.counts(p, v):
			failed[p.UID] = at
		}
	}
	for uid, at := range s.failed {
		if _, there := failed[uid]; !there {
			s.gone = append(s.gone, at)
		}
	}
	s.failed = failed
	s.gone = slices.DeleteFunc(s.gone, func(at time.Time) bool { return !at.After(s.success) })
	slices.SortFunc(s.gone, time.Time.Compare)
	s.gone = s.gone[max(len(s.gone)-longest, 0):]
	var f failure
	for _, at := range s.gone {
		f.add(at)
	}
	for _, at := range failed {
		if at.After(s.success) {
			f.add(at)
		}
	}
	return f
}

// counts tells whether a pod has failed. One that the controller itself deletes, whose
// finalizer it takes off first, has not.
func (s *streak) counts(p *corev1.Pod, v *view) bool {
	_, known := s.failed[p.UID]
	ours := p.DeletionTimestamp != nil && (!tracked(p) || v.freed[p.UID])
	return podFailed(p, v.job) && (known || !ours)
}

func (f *failure) add(at time.Time) {
	f.times++
	if at.After(f.last) {
		f.last = at
	}
}
