package replicaset

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A status that is written and read again has to be the same: otherwise each
// write causes the next one.
func TestReplicationStatusRoundTrip(t *testing.T) {
	rc := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "a", Generation: 3}}
	rc.Spec.Selector = map[string]string{"app": "web"}
	rc.Spec.Template = &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: rc.Spec.Selector}}
	rc.Status.Conditions = []corev1.ReplicationControllerCondition{
		{Type: corev1.ReplicationControllerReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate"}}
	set := asSet(rc)
	if set.Kind != "ReplicationController" || set.Spec.Selector.MatchLabels["app"] != "web" {
		t.Errorf("set %+v", set)
	}
	if got := replicationStatus(&set.Status); !equality.Semantic.DeepEqual(got, rc.Status) {
		t.Errorf("status %+v, want %+v", got, rc.Status)
	}
	status, _ := statusOf(set, counted{active: []*corev1.Pod{pod("a", "n", time.Hour)}}, now)
	status.TerminatingReplicas = nil
	rc.Status = replicationStatus(&status)
	if again := asSet(rc).Status; !equality.Semantic.DeepEqual(again, status) || again.ReadyReplicas != 1 ||
		again.ObservedGeneration != 3 {
		t.Errorf("status %+v, want %+v", again, status)
	}
}
