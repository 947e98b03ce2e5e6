package disruption_test

import (
	"testing"

	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/disruption"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

func TestStaleScenarios(t *testing.T) {
	controllertest.PlayDir(t, "testdata/stale", disruption.NewStale)
}
