package registry_test

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/coordinator/registry"
	"github.com/shoal-project/shoal/coordinator/registry/gated"
)

// What is off in pods is off in every kind that has pods in it, also in those
// that come later.
func TestPodsInAllKinds(t *testing.T) {
	pods, err := gated.Of("/pods", reflect.TypeFor[corev1.Pod]())
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, k := range registry.Kinds() {
		n := k.KindNames()
		resource := n.GroupVersion.Group + "/" + n.Resource
		of := reflect.TypeOf(k.NewObject()).Elem()
		fields, err := gated.Of(resource, of)
		if err != nil {
			t.Error(err)
		}
		if !holds(of, reflect.TypeFor[corev1.PodSpec](), map[reflect.Type]bool{}) {
			continue
		}
		found++
		if reflect.DeepEqual(fields, gated.Fields{}) {
			t.Errorf("%s has pods in it: say where in podSpecs of registry/gated/table.go", resource)
		}
	}
	if found < 9 || reflect.DeepEqual(pods, gated.Fields{}) {
		t.Errorf("%d kinds with pods", found)
	}
}

func holds(t, part reflect.Type, seen map[reflect.Type]bool) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Array:
		return holds(t.Elem(), part, seen)
	case reflect.Struct:
	default:
		return false
	}
	if t == part {
		return true
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	for i := range t.NumField() {
		if holds(t.Field(i).Type, part, seen) {
			return true
		}
	}
	return false
}
