package legacytoken_test

import (
	"testing"
	"time"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/legacytoken"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

func TestScenarios(t *testing.T) {
	controllertest.Play(t, func(env controller.Env) (*controller.Loop, error) {
		// Days would cost the detector of mutations, which looks every second, most of the time of this test.
		return legacytoken.New(env, legacytoken.DefaultPeriod, time.Hour)
	})
}
