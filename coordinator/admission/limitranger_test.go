package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// A range that the informer has not told of yet counts from its creation on.
func TestLimitRangeThatTheInformerDoesNotKnow(t *testing.T) {
	client := fake.NewClientset(&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "r"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer,
			DefaultRequest: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}}}})
	l := newLimitRanger()
	l.SetExternalKubeClientSet(client)
	l.SetExternalKubeInformerFactory(informers.NewSharedInformerFactory(client, 0)) // is not started
	if err := l.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]string{"a": "100m", "b": "0"} {
		for range 3 {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p"},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
			err := l.Admit(t.Context(), admission.NewAttributesRecord(pod, nil, corev1.SchemeGroupVersion.WithKind("Pod"),
				namespace, "p", corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Create,
				runtime.Object(nil), false, nil), nil)
			if got := pod.Spec.Containers[0].Resources.Requests.Cpu(); err != nil || got.String() != want {
				t.Errorf("namespace %s: %s, want %s, %v", namespace, got, want, err)
			}
		}
	}
	lists := 0
	for _, a := range client.Actions() {
		if a.GetVerb() == "list" {
			lists++
		}
	}
	if lists != 2 {
		t.Errorf("%d lists for two namespaces", lists)
	}
}
