package expand_test

import (
	"testing"

	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/expand"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

// TestScenarios covers PV-33, PV-36, PV-37, PV-38.
func TestScenarios(t *testing.T) { controllertest.Play(t, expand.New) }
