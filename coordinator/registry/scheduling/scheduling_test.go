package scheduling

import (
	"testing"

	"github.com/shoal-project/shoal/coordinator/registry/kind/kindtest"
)

func TestScenarios(t *testing.T) { kindtest.Play(t, Kinds(), nil) }

// The two classes of every cluster pass the rules that keep others away from them.
func TestSystemClassesAreValid(t *testing.T) {
	for _, c := range SystemClasses() {
		if errs := validate(t.Context(), c); len(errs) > 0 {
			t.Errorf("%s: %v", c.Name, errs)
		}
	}
}
