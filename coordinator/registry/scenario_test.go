package registry_test

import (
	"net/netip"
	"testing"

	"github.com/shoal-project/shoal/coordinator/registry"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/kind/kindtest"
)

// What all kinds share, or many have alike, is in testdata.
func TestScenarios(t *testing.T) {
	kindtest.Play(t, registry.Kinds(), func(env *kind.Env) {
		env.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	})
}
