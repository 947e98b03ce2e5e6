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

// from adds annotations that say where a pod is from.
func from(p *corev1.Pod, keys ...string) *corev1.Pod {
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	for _, key := range keys {
		p.Annotations[key] = "file"
	}
	return p
}

// binding is of pods/binding, with one annotation.
func binding(key string) admission.Attributes {
	b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{key: "stop"}}}
	return admission.NewAttributesRecord(b, nil, corev1.SchemeGroupVersion.WithKind("Binding"), "d", "p",
		corev1.SchemeGroupVersion.WithResource("pods"), "binding", admission.Create, nil, false, nil)
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
		{"made without effect", attributes(from(isolated("stop"), fence.SourceAnnotation), nil, ""), false},
		{"of a mirror", attributes(from(isolated("stop"), fence.SourceAnnotation, corev1.MirrorPodAnnotationKey), nil, ""),
			true},
		{"a source without a policy", attributes(from(isolated(""), fence.SourceAnnotation), nil, ""), true},
		{"undone by a source", attributes(from(isolated("stop"), fence.SourceAnnotation), isolated("stop"), ""), false},
		{"done by a source", attributes(isolated("stop"), from(isolated("stop"), fence.SourceAnnotation), ""), false},
		{"a source by the status",
			attributes(from(isolated("stop"), fence.SourceAnnotation), isolated("stop"), "status"), false},
		{"a source of a pod that stays", attributes(from(isolated(""), fence.SourceAnnotation), isolated(""), ""), true},
		{"bound", binding("a"), true},
		{"added by a binding", binding(fence.PolicyAnnotation), false},
		{"undone by a binding", binding(fence.SourceAnnotation), false},
		{"undone by a mirror's binding", binding(corev1.MirrorPodAnnotationKey), false},
		{"by the status", attributes(isolated("stop"), isolated("stay"), "status"), false},
	} {
		if err := p.Validate(t.Context(), tt.a, nil); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
