package namespace

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestConditions(t *testing.T) {
	now := time.Unix(1000, 0)
	left := &outcome{
		content:    []error{errors.New("delete x: refused")},
		remaining:  map[schema.GroupVersionResource]int{{Group: "apps", Version: "v1", Resource: "deployments"}: 2},
		finalizers: map[string]int{"a/b": 1},
	}
	if left.done() || left.err() == nil {
		t.Error("content is left, yet done")
	}
	have, changed := conditions(nil, left, now)
	if !changed || len(have) != 5 {
		t.Fatalf("conditions %+v", have)
	}
	want := map[corev1.NamespaceConditionType]string{
		corev1.NamespaceDeletionDiscoveryFailure: "All resources successfully discovered",
		corev1.NamespaceDeletionContentFailure:   "Failed to delete all resource types, 1 remaining: delete x: refused",
		corev1.NamespaceContentRemaining:         "Some resources are remaining: deployments.apps has 2 resource instances",
		corev1.NamespaceFinalizersRemaining:      "Some content in the namespace has finalizers remaining: a/b in 1 resource instances",
	}
	for _, c := range have {
		if m, ok := want[c.Type]; ok && c.Message != m {
			t.Errorf("%s: %q", c.Type, c.Message)
		}
	}
	if _, changed := conditions(have, left, now.Add(time.Minute)); changed {
		t.Error("the same outcome changes the conditions")
	}
	if !(&outcome{}).done() {
		t.Error("nothing is left, yet not done")
	}
}
