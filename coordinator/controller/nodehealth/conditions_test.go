package nodehealth

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestConditionsComeBackAsTheyWere(t *testing.T) {
	now := time.Unix(2000, 0)
	before := []corev1.NodeCondition{
		{Type: corev1.NodeReady,
			Status: "True", Reason: "KubeletReady", Message: "kubelet is posting ready status",
			LastTransitionTime: metav1.Unix(1, 0)},
		{Type: corev1.NodeDiskPressure, Status: "True", Reason: "KubeletHasDiskPressure"},
		{Type: "Custom", Status: "True"},
	}
	gone := unknown(before, now)
	if gone[0].Status != "Unknown" || gone[1].Status != "Unknown" || gone[2].Status != "True" || before[0].Status != "True" {
		t.Errorf("unknown: %+v", gone)
	}
	if again := restored(gone, before, now); again[0].Reason != "KubeletReady" || again[1].Status != "True" {
		t.Errorf("restored: %+v", again)
	}
}
