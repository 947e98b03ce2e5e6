package replicaset

import (
	"errors"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Unix(100000, 0)

func pod(name, node string, ready time.Duration, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name),
			CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
	p.Spec.NodeName = node
	p.Status.Phase = corev1.PodPending
	if ready > 0 {
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-ready))}}
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func TestRank(t *testing.T) {
	cost := func(n string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: n} }
	}
	for _, tt := range []struct {
		name        string
		first, then *corev1.Pod
	}{
		{"unassigned before assigned", pod("b", "", 0), pod("a", "n", 0)},
		{"pending before running", pod("b", "n", 0), pod("a", "n", time.Hour)},
		{"cheap before dear", pod("b", "n", time.Hour, cost("-5")), pod("a", "m", time.Hour, cost("10"))},
		{"crowded node before lonely one", pod("b", "crowded", time.Hour), pod("a", "m", time.Hour)},
		{"ready for a shorter time first", pod("b", "m", time.Minute), pod("a", "m", 10*time.Minute)},
		{"more restarts first", pod("b", "m", time.Hour, func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}}
		}), pod("a", "m", time.Hour)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pods := []*corev1.Pod{tt.then, tt.first}
			related := append(pods, pod("c", "crowded", time.Hour), pod("d", "crowded", time.Hour))
			if got := rank(pods, related, now); got[0] != tt.first {
				t.Errorf("%s goes first", got[0].Name)
			}
		})
	}
}

func TestPlanAndStatus(t *testing.T) {
	two := int32(2)
	rs := &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Replicas: &two, MinReadySeconds: 60}}
	pods := []*corev1.Pod{pod("a", "n", time.Hour), pod("b", "n", 30*time.Second), pod("c", "n", 0)}
	if create, del := plan(rs, pods, pods, now); create != 0 || len(del) != 1 || del[0].Name != "c" {
		t.Errorf("create %d, delete %v", create, del)
	}
	if create, _ := plan(rs, nil, nil, now); create != 2 {
		t.Errorf("create %d of 2", create)
	}
	status, wait := statusOf(rs, counted{active: pods, terminating: 1, failure: errors.New("quota")}, now)
	if status.Replicas != 3 || status.ReadyReplicas != 2 || status.AvailableReplicas != 1 ||
		*status.TerminatingReplicas != 1 || wait != 30*time.Second {
		t.Errorf("status %+v, wait %v", status, wait)
	}
	if c := status.Conditions; len(c) != 1 || c[0].Reason != "FailedDelete" {
		t.Errorf("conditions %+v", c)
	}
	rs.Status = status
	if status, _ := statusOf(rs, counted{active: pods}, now); len(status.Conditions) != 0 {
		t.Errorf("the failure stays: %+v", status.Conditions)
	}
}
