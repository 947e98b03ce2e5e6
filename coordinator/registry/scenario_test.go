package registry_test

import (
	"net/netip"
	"testing"

	"github.com/shoal-project/shoal/coordinator/registry"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/kind/kindtest"
)

// What kinds have in common is in testdata: what is refused and accepted, warnings,
// what is stored of what a client sends, and what a deletion answers.
func TestScenarios(t *testing.T) {
	kindtest.Play(t, registry.Kinds(), func(env *kind.Env) {
		env.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	})
}
