package apiserver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// An object of a Go type is found again in its typed value, so that an update does not
// make maps of it; what was merged is made of maps.
func TestTypedToObject(t *testing.T) {
	c, err := (&Server{}).typeConverter()
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "b"}}}
	v, err := c.ObjectToTyped(pod, typed.AllowDuplicates)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.TypedToObject(v); err != nil || got != pod {
		t.Errorf("made of a pod: %T, %v: not the pod itself", got, err)
	}
	other := pod.DeepCopy()
	other.Labels = map[string]string{"c": "d"}
	w, err := c.ObjectToTyped(other)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := v.Merge(w)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.TypedToObject(merged)
	u, ok := got.(*unstructured.Unstructured)
	if err != nil || !ok || u.GetLabels()["a"] != "b" || u.GetLabels()["c"] != "d" {
		t.Errorf("merged: %T, %v", got, err)
	}
	if got, err := c.TypedToObject(typedMap(t)); err != nil || got.(*unstructured.Unstructured).GetName() != "m" {
		t.Errorf("made of maps: %v, %v", got, err)
	}
}

func typedMap(t *testing.T) *typed.TypedValue {
	t.Helper()
	v, err := typed.DeducedParseableType.FromUnstructured(map[string]any{"kind": "M", "apiVersion": "v1",
		"metadata": map[string]any{"name": "m"}})
	if err != nil {
		t.Fatal(err)
	}
	return v
}
