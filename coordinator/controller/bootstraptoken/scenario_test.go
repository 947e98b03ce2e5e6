package bootstraptoken_test

import (
	"testing"

	"github.com/shoal-project/shoal/coordinator/controller/bootstraptoken"
	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

func TestSignerScenarios(t *testing.T) {
	controllertest.PlayDir(t, "testdata/signer", bootstraptoken.NewSigner)
}

func TestCleanerScenarios(t *testing.T) {
	controllertest.PlayDir(t, "testdata/cleaner", bootstraptoken.NewCleaner)
}
