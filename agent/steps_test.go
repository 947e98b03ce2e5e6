package main

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/pod"
)

// A pod does not run without the devices of its claims.
func TestEnsureDevices(t *testing.T) {
	name := "one"
	byTemplate := []corev1.PodResourceClaim{{Name: "c", ResourceClaimTemplateName: &name}}
	made := func(name *string) []corev1.PodResourceClaimStatus {
		return []corev1.PodResourceClaimStatus{{Name: "c", ResourceClaimName: name}}
	}
	for what, tt := range map[string]struct {
		claims []corev1.PodResourceClaim
		status []corev1.PodResourceClaimStatus
		fault  bool
	}{
		"no claims":              {},
		"a claim":                {claims: []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: &name}}, fault: true},
		"one not generated yet":  {claims: byTemplate, fault: true},
		"a generated one":        {byTemplate, made(&name), true},
		"one that is not needed": {byTemplate, made(nil), false},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{ResourceClaims: tt.claims},
			Status: corev1.PodStatus{ResourceClaimStatuses: tt.status}}
		var fault *pod.Fault
		err := ensureDevices(t.Context(), &pod.Setting{Pod: p})
		if tt.fault != errors.As(err, &fault) || tt.fault != (err != nil) {
			t.Errorf("%s: %v", what, err)
		}
		if fault != nil && fault.Reason != "FailedPrepareDynamicResources" {
			t.Errorf("%s: reason %s", what, fault.Reason)
		}
	}
}

// The devices are asked for before anything of the pod runs.
func TestDevicesComeBeforeTheSandbox(t *testing.T) {
	at := map[string]int{}
	for i, s := range steps(&pod.Manager{}, nil, nil, nil, nil) {
		at[s.Name] = i + 1
	}
	if at["devices"] == 0 || at["sandbox"] == 0 || at["devices"] > at["sandbox"] {
		t.Errorf("steps %v", at)
	}
}
