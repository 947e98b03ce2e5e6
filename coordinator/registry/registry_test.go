package registry

import (
	"testing"

	"github.com/shoal-project/shoal/coordinator/registry/kind/kindtest"
)

// TestScenarios plays what many kinds have in common: warnings, what is stored of
// what a client sends, and what a deletion answers.
func TestScenarios(t *testing.T) { kindtest.Play(t, Kinds(), nil) }
