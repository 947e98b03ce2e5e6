package loadbalancer_test

import (
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/loadbalancer"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

func TestScenarios(t *testing.T) {
	controllertest.Play(t, func(env controller.Env) (*controller.Loop, error) {
		return loadbalancer.New(env, loadbalancer.Deps{
			Reserved:   []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
			API:        netip.MustParseAddr("192.0.2.250"),
			APIService: types.NamespacedName{Namespace: "kube-system", Name: "shoal-api"},
		})
	})
}
