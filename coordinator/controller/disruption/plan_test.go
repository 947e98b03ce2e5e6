package disruption

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

func TestExpected(t *testing.T) {
	budget := func(least, most string) *policyv1.PodDisruptionBudget {
		b := &policyv1.PodDisruptionBudget{}
		if least != "" {
			v := intstr.Parse(least)
			b.Spec.MinAvailable = &v
		}
		if most != "" {
			v := intstr.Parse(most)
			b.Spec.MaxUnavailable = &v
		}
		return b
	}
	for _, tt := range []struct {
		least, most    string
		count, healthy int32
	}{
		{"2", "", 7, 2}, {"50%", "", 5, 3}, {"", "1", 5, 4}, {"", "30%", 5, 3}, {"", "9", 5, 0},
	} {
		count, healthy, err := expected(budget(tt.least, tt.most), 7, 5)
		if err != nil || count != tt.count || healthy != tt.healthy {
			t.Errorf("min %q max %q: %d, %d, %v", tt.least, tt.most, count, healthy, err)
		}
	}
}

func TestStatus(t *testing.T) {
	now := time.Unix(1000, 0)
	ready := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: "True"}}}}
	}
	pods := []*corev1.Pod{ready("a"), ready("b"), ready("c")}
	b := &policyv1.PodDisruptionBudget{Status: policyv1.PodDisruptionBudgetStatus{DisruptedPods: map[string]metav1.Time{
		"a": metav1.NewTime(now.Add(-time.Minute)), "b": metav1.NewTime(now.Add(-time.Hour)), "gone": metav1.NewTime(now),
	}}}
	keep, overdue, in := disrupted(b, pods, now)
	if len(keep) != 1 || len(overdue) != 1 || overdue[0].Name != "b" || in != time.Minute {
		t.Errorf("keep %v, overdue %d, in %v", keep, len(overdue), in)
	}
	s := status(b, counted{expected: 3, desired: 1, current: healthy(pods, keep), disrupted: keep}).Status
	if s.CurrentHealthy != 2 || s.DisruptionsAllowed != 1 || s.Conditions[0].Reason != policyv1.SufficientPodsReason {
		t.Errorf("status %+v", s)
	}
	if s := status(b, counted{current: 5}).Status; s.DisruptionsAllowed != 0 {
		t.Error("a budget without pods allows disruptions")
	}
}

// TestSeveralBudgets: a pod that counts in more than one says so, once, and both are looked at.
func TestSeveralBudgets(t *testing.T) {
	budgets := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Policy().V1().PodDisruptionBudgets()
	for _, name := range []string{"one", "two"} {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}}
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{name: "yes"}}
		if err := budgets.Informer().GetIndexer().Add(b); err != nil {
			t.Fatal(err)
		}
	}
	events := record.NewFakeRecorder(10)
	r := &reconciler{budgets: budgets.Lister(), events: events,
		loop: controller.New("test", 1, slog.New(slog.DiscardHandler))}
	ended, end := context.WithCancel(t.Context())
	end()
	defer func() { _ = r.loop.Run(ended) }() // which ends its queue
	pod := func(labels map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", Labels: labels}}
	}
	one, both := pod(map[string]string{"one": "yes"}), pod(map[string]string{"one": "yes", "two": "yes"})
	for _, step := range []struct {
		old, now *corev1.Pod
		told     int
	}{{nil, one, 0}, {one, both, 1}, {both, both, 0}, {both, nil, 0}, {nil, both, 1}} {
		r.podChanged(step.old, step.now)
		if n := len(events.Events); n != step.told {
			t.Errorf("%v, then %v: told %d times", step.old, step.now, n)
		}
		for len(events.Events) > 0 {
			if e := <-events.Events; !strings.HasPrefix(e,
				`Warning MultiplePodDisruptionBudgets Pod "ns"/"p" matches multiple PodDisruptionBudgets.`) {
				t.Error(e)
			}
		}
	}
}
