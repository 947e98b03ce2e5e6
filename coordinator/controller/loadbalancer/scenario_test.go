package loadbalancer_test

import (
	"net/netip"
	"testing"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/loadbalancer"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

func TestScenarios(t *testing.T) {
	controllertest.Play(t, func(env controller.Env) (*controller.Loop, error) {
		return loadbalancer.New(env, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")})
	})
}
