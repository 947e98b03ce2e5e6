package registry_test

import (
	"context"
	"net/netip"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shoal-project/shoal/coordinator/registry"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/kind/kindtest"
)

// What kinds have in common is in testdata: what is refused and accepted, warnings,
// what is stored of what a client sends, and what a deletion answers.
func TestScenarios(t *testing.T) {
	kindtest.Play(t, registry.Kinds(), func(env *kind.Env) {
		env.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
		env.Authorizer = driversMay{}
	})
}

// driversMay lets everybody write each part of a claim's status, and nothing else
// that kinds ask for.
type driversMay struct{}

func (driversMay) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetResource() == "resourceclaims" {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}
