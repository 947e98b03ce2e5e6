package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shoal-project/shoal/agent/fence"
)

func isolated(value string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "d"}}
	if value != "" {
		p.Annotations = map[string]string{fence.PolicyAnnotation: value}
	}
	return p
}

// attributes are of an update when there is an old pod.
func attributes(pod, old *corev1.Pod, subresource string) admission.Attributes {
	operation, before := admission.Create, runtime.Object(nil)
	if old != nil {
		operation, before = admission.Update, old
	}
	return admission.NewAttributesRecord(pod, before, corev1.SchemeGroupVersion.WithKind("Pod"), "d", "p",
		corev1.SchemeGroupVersion.WithResource("pods"), subresource, operation, nil, false, nil)
}

func TestIsolationPolicyDefault(t *testing.T) {
	mirror := isolated("")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	for _, tt := range []struct {
		name     string
		standard fence.Policy
		pod      *corev1.Pod
		want     string
	}{
		{"upstream's behaviour is written nowhere", "", isolated(""), ""},
		{"nor where it is said", fence.Stay, isolated(""), ""},
		{"the cluster's", fence.Stop, isolated(""), "stop"},
		{"the pod's own", fence.Stop, isolated("stay"), "stay"},
		{"a pod of a manifest", fence.Stop, mirror, ""},
	} {
		p := newIsolationPolicy(tt.standard)
		if err := p.Admit(t.Context(), attributes(tt.pod, nil, ""), nil); err != nil {
			t.Fatal(err)
		}
		if got := tt.pod.Annotations[fence.PolicyAnnotation]; got != tt.want {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}

func TestIsolationPolicyIsValidAndStays(t *testing.T) {
	p := newIsolationPolicy("")
	for _, tt := range []struct {
		name string
		a    admission.Attributes
		ok   bool
	}{
		{"none", attributes(isolated(""), nil, ""), true},
		{"stop", attributes(isolated("stop"), nil, ""), true},
		{"stop-if-replaced", attributes(isolated("stop-if-replaced"), nil, ""), true},
		{"unknown", attributes(isolated("Stop"), nil, ""), false},
		{"unchanged", attributes(isolated("stop"), isolated("stop"), ""), true},
		{"unknown from before it was looked at", attributes(isolated("x"), isolated("x"), ""), true},
		{"added", attributes(isolated("stop"), isolated(""), ""), false},
		{"taken away", attributes(isolated(""), isolated("stop"), ""), false},
		{"by the status", attributes(isolated("stop"), isolated("stay"), "status"), false},
	} {
		if err := p.Validate(t.Context(), tt.a, nil); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
