package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/record"
)

// The Node may be older than what a plugin told: resources of plugins are not counted by
// it, those that others advertise are.
func TestPluggedAreNotCounted(t *testing.T) {
	node := &corev1.Node{}
	node.Status.Allocatable = corev1.ResourceList{"vendor.example/dev": resource.MustParse("0"),
		"other.example/dev": resource.MustParse("0")}
	m := &Manager{HasPlugin: func(name corev1.ResourceName) bool { return name == "vendor.example/dev" }}
	own := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
	for name, want := range map[corev1.ResourceName]string{"vendor.example/dev": "",
		"other.example/dev": "OutOfother.example/dev"} {
		p := &corev1.Pod{}
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{name: resource.MustParse("1")}}}}
		got := ""
		if v := Admit(p, nil, m.withoutPlugged(node), own); v != nil {
			got = v.Reason
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if len(node.Status.Allocatable) != 2 {
		t.Error("the Node itself was changed")
	}
}

// TestEnding: devices are waited for while their pod ends, and taken from it only once
// all its containers were seen to have ended.
func TestEnding(t *testing.T) {
	p := &corev1.Pod{}
	over, deleted := p.DeepCopy(), p.DeepCopy()
	over.Status.Phase = corev1.PodFailed
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	ended := &record.Observed{}
	runs := &record.Observed{Containers: []record.Observation{{State: record.Running}}}
	for name, tt := range map[string]struct {
		w            *worker
		ending, idle bool
	}{
		"runs":                        {&worker{phase: wanted, pod: p, shown: shown{observed: runs}}, false, false},
		"is deleted":                  {&worker{phase: wanted, pod: deleted, shown: shown{observed: runs}}, true, false},
		"was deleted by force":        {&worker{phase: removed, pod: p, shown: shown{observed: runs}}, true, false},
		"evicted, stops yet":          {&worker{phase: wanted, pod: over, shown: shown{observed: runs}}, true, false},
		"over, not looked at yet":     {&worker{phase: wanted, pod: over}, true, false},
		"over, nothing runs":          {&worker{phase: wanted, pod: over, shown: shown{observed: ended}}, true, true},
		"found, a source may have it": {&worker{phase: found, pod: p}, false, false},
	} {
		m := &Manager{workers: map[types.UID]*worker{"u": tt.w}}
		if ending, idle := m.Ending("u"); ending != tt.ending || idle != tt.idle {
			t.Errorf("%s: ending %t, idle %t", name, ending, idle)
		}
	}
	if ending, idle := (&Manager{}).Ending("u"); ending || idle {
		t.Error("a pod that nobody knows")
	}
}
