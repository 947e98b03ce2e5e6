package servicecidr_test

import (
	"testing"

	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/servicecidr"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

func TestRepair(t *testing.T) {
	controllertest.Play(t, servicecidr.NewRepair)
}
