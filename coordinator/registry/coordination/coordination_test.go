package coordination

import (
	"testing"

	"github.com/shoal-project/shoal/coordinator/registry/kind/kindtest"
)

func TestScenarios(t *testing.T) { kindtest.Play(t, Kinds(), nil) }
