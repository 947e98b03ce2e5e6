package podgc_test

import (
	"testing"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/podgc"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

func TestScenarios(t *testing.T) {
	controllertest.Play(t, func(env controller.Env) (*controller.Loop, error) { return podgc.New(env, 0) })
}
