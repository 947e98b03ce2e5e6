package queue

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// rig is a queue with one plugin, Fit, that waits for nodes, and gates by label.
func rig() *Queue {
	return New(Config{
		Less: func(a, b *framework.QueuedPod) bool {
			if a.Priority != b.Priority {
				return a.Priority > b.Priority
			}
			return a.Timestamp.Before(b.Timestamp)
		},
		PreEnqueue: func(p *corev1.Pod) *framework.Status {
			if p.Labels["gate"] != "" {
				return framework.NewStatus(framework.UnschedulableAndUnresolvable, "gated").By("Gates")
			}
			return nil
		},
		Hints: func(_ *corev1.Pod, plugin string) []framework.EventHint {
			if plugin != "Fit" {
				return nil
			}
			return []framework.EventHint{
				{Resource: framework.Node, Actions: framework.Add,
					Hint: func(_ *corev1.Pod, e framework.Event) framework.Hint {
						return framework.Hint(e.New.(*corev1.Node).Name != "small")
					}}}
		},
	})
}

func pod(name string, priority int32) *framework.PodInfo {
	return &framework.PodInfo{Priority: priority,
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}}
}

func nodeAdded(name string) framework.Event {
	return framework.Event{Resource: framework.Node, Action: framework.Add,
		New: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}}
}

// next pops within a minute of virtual time; it returns the name and how long that took.
func next(t *testing.T, q *Queue) (*framework.QueuedPod, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	start := time.Now()
	p := q.Pop(ctx)
	if p == nil {
		t.Fatal("nothing came")
	}
	return p, time.Since(start)
}

func refuse(q *Queue, p *framework.QueuedPod, by ...string) {
	p.RejectedBy, p.PendingOn = sets.New(by...), nil
	q.Refuse(p)
}

func TestPriorityThenAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := rig()
		for _, p := range []*framework.PodInfo{pod("a", 0), pod("b", 0), pod("c", 5)} {
			q.Add(p)
			time.Sleep(time.Millisecond)
		}
		for _, want := range []string{"c", "a", "b"} {
			p, _ := next(t, q)
			if p.Pod.Name != want {
				t.Fatalf("got %s, want %s", p.Pod.Name, want)
			}
			q.Done(p.UID())
		}
	})
}

func TestErrorsBackOffAndDouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := rig()
		q.Add(pod("a", 0))
		for _, want := range []time.Duration{0, 1, 2, 4, 8, 10, 10} {
			p, took := next(t, q)
			if took != want*time.Second {
				t.Fatalf("came after %v, want %v", took, want*time.Second)
			}
			refuse(q, p)
		}
	})
}

func TestRefusedWaitsForItsEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := rig()
		q.Add(pod("a", 0))
		p, _ := next(t, q)
		refuse(q, p, "Fit")
		for _, e := range []framework.Event{nodeAdded("small"), {Resource: framework.Pod, Action: framework.Delete}} {
			if q.Move(e); q.TryPop() != nil {
				t.Fatalf("came back for %v", e.Resource)
			}
		}
		q.Move(nodeAdded("big"))
		// Nothing else is to do, so the rest of the back-off is not waited for.
		if _, took := next(t, q); took != 0 {
			t.Fatalf("came after %v", took)
		}
	})
}

func TestEventDuringTheCycleCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := rig()
		q.Add(pod("a", 0))
		p, _ := next(t, q)
		q.Move(nodeAdded("big"))
		refuse(q, p, "Fit")
		if _, took := next(t, q); took != 0 {
			t.Fatalf("came after %v", took)
		}
	})
}

func TestLeftoverComesAfterFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := rig()
		q.Add(pod("a", 0))
		p, _ := next(t, q)
		refuse(q, p, "Fit")
		if _, took := next(t, q); took != 5*time.Minute {
			t.Fatalf("came after %v", took)
		}
	})
}

func TestBackedOffPodYieldsToActiveOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := rig()
		q.Add(pod("a", 100))
		p, _ := next(t, q)
		refuse(q, p, "Fit")
		q.Move(nodeAdded("big"))
		q.Add(pod("b", 0))
		if p, _ := next(t, q); p.Pod.Name != "b" {
			t.Fatalf("got %s", p.Pod.Name)
		}
	})
}

func TestGateHoldsUntilLifted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := rig()
		held := pod("a", 0)
		held.Pod.Labels = map[string]string{"gate": "g"}
		q.Add(held)
		time.Sleep(time.Hour)
		if q.TryPop() != nil {
			t.Fatal("gated pod came")
		}
		q.Update(held.Pod, pod("a", 0), framework.UpdatePodLabel)
		if _, took := next(t, q); took != 0 {
			t.Fatalf("came after %v", took)
		}
	})
}

func TestDeletedPodsDoNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := rig()
		q.Add(pod("waiting", 0))
		q.Delete("waiting")
		q.Add(pod("out", 0))
		p, _ := next(t, q)
		q.Delete("out")
		refuse(q, p, "Fit")
		if a, b, u := q.Len(); a+b+u != 0 {
			t.Fatalf("left: %d active, %d backed off, %d refused", a, b, u)
		}
	})
}

// What comes into a part of the queue is counted by what brought it.
func TestIncoming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := rig()
		var got []string
		q.c.Incoming = func(part, event string) { got = append(got, part+" "+event) }
		q.Add(pod("a", 0))
		p, _ := next(t, q)
		refuse(q, p, "Fit")
		q.Move(nodeAdded("small"))
		q.Move(nodeAdded("large"))
		p, _ = next(t, q)
		q.Refuse(p) // an error
		p.RejectedBy = nil
		next(t, q)
		gated := pod("b", 0)
		gated.Pod.Labels = map[string]string{"gate": "x"}
		q.Add(gated)
		want := []string{"active UnschedulablePodAdd", "unschedulable ScheduleAttemptFailure", "backoff NodeAdd",
			"active PopFromBackoffQ", "unschedulable ScheduleAttemptFailure", "active UnschedulableTimeout",
			"unschedulable UnschedulablePodAdd"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
