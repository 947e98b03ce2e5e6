package fieldrule

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestDefault(t *testing.T) {
	var pointer *int32
	Default(&pointer, 5)
	if pointer == nil || *pointer != 5 {
		t.Errorf("%v", pointer)
	}
	*pointer = 0
	if Default(&pointer, 5); *pointer != 0 {
		t.Error("zero is a value where there is a pointer")
	}
	text := ""
	DefaultEmpty(&text, "a")
	DefaultEmpty(&text, "b")
	if text != "a" {
		t.Errorf("%q", text)
	}
}

func TestInvalid(t *testing.T) {
	p := field.NewPath("spec", "name")
	errs := Invalid(p, "x", []string{"too short", "too plain"})
	if len(errs) != 2 || errs[1].Error() != `spec.name: Invalid value: "x": too plain` {
		t.Errorf("%v", errs)
	}
	if Invalid(p, "x", nil) != nil {
		t.Error("without a fault there is no error")
	}
}
