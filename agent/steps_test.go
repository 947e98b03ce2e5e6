package main

import (
	"errors"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/device/dra"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/qos"
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

// A runtime that is not the agent's leaves the groups of pods: they go with their pods, and
// nothing else does.
func TestGroupsThatARuntimeLeaves(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes control groups")
	}
	tree := qos.Tree{Driver: cgroup.Cgroupfs, Root: fmt.Sprintf("/shoal-left-%d", os.Getpid())}
	groups, err := cgroup.Open(tree.Driver)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := groups.Delete(tree.Root); err != nil {
			t.Error(err)
		}
	})
	left, err := qos.OpenForeign(tree)
	if err != nil {
		t.Fatal(err)
	}
	gone := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "gone"}}
	stays := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "stays"}}
	for _, p := range []*corev1.Pod{gone, stays} {
		if err := groups.Ensure(cgroupOf(tree, p), cgroup.Resources{}); err != nil {
			t.Fatal(err)
		}
	}
	step := containers{left: left}.groupStep(nil)
	if err := step.Ensure(t.Context(), &pod.Setting{Pod: gone}); err != nil {
		t.Error(err)
	}
	for range 2 { // the second time there is none
		if err := step.Release(t.Context(), &pod.Setting{Pod: gone}); err != nil {
			t.Error(err)
		}
	}
	if groups.HasFile(cgroupOf(tree, gone), "cgroup.procs") || !groups.HasFile(cgroupOf(tree, stays), "cgroup.procs") {
		t.Error("the group of a pod that is gone is left, or another's is not")
	}
	none := containers{}.groupStep(nil) // of nodes that only pretend
	if err := errors.Join(none.Ensure(t.Context(), &pod.Setting{Pod: stays}),
		none.Release(t.Context(), &pod.Setting{Pod: stays})); err != nil {
		t.Error(err)
	}
}
