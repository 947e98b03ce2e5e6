package devicetaint_test

import (
	"testing"

	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/devicetaint"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

func TestScenarios(t *testing.T) { controllertest.Play(t, devicetaint.New) }
