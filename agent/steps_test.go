package main

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/device/dra"
	"github.com/shoal-project/shoal/agent/pod"
)

// A pod does not run without the devices of its claims.
func TestEnsureDevices(t *testing.T) {
	name := "one"
	p := &corev1.Pod{Spec: corev1.PodSpec{
		ResourceClaims: []corev1.PodResourceClaim{{Name: "c", ResourceClaimTemplateName: &name}}}}
	var fault *pod.Fault
	err := ensureDevices(&dra.Manager{})(t.Context(), &pod.Setting{Pod: p}) // not generated yet
	if !errors.As(err, &fault) || fault.Reason != "FailedPrepareDynamicResources" {
		t.Errorf("%v", err)
	}
}

// The devices are asked for before anything of the pod runs.
func TestDevicesComeBeforeTheSandbox(t *testing.T) {
	at := map[string]int{}
	for i, s := range steps(&pod.Manager{}, nil, nil, nil, pod.Step{}, nil, nil, nil, nil) {
		at[s.Name] = i + 1
	}
	if at["devices"] == 0 || at["sandbox"] == 0 || at["devices"] > at["sandbox"] {
		t.Errorf("steps %v", at)
	}
}

// Nodes that only pretend to run pods have no groups.
func TestStepWithoutGroups(t *testing.T) {
	none := groupStep(nil, nil)
	s := &pod.Setting{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}}
	if err := errors.Join(none.Ensure(t.Context(), s), none.Release(t.Context(), s)); err != nil {
		t.Error(err)
	}
}
