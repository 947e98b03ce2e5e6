package endpointslice_test

import (
	"testing"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/endpointslice"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

// In testdata a slice has three endpoints at most.
func TestScenarios(t *testing.T) {
	controllertest.Play(t, func(env controller.Env) (*controller.Loop, error) { return endpointslice.New(env, 3) })
}
