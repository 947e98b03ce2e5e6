package authentication

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/kind/kindtest"
)

// tokens knows alice's; "api" is whom it is for. The one of mallory is for whoever
// asks, and says that it is for another.
type tokens struct{}

func (tokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	asked, _ := authenticator.AudiencesFrom(ctx)
	u := &user.DefaultInfo{Name: token, UID: "u", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}}
	switch token {
	case "alice":
		both := asked.Intersect(authenticator.Audiences{"api"})
		if len(asked) > 0 && len(both) == 0 {
			return nil, false, errors.New("token audiences are invalid for the target audiences")
		}
		return &authenticator.Response{User: u, Audiences: both}, true, nil
	case "mallory":
		return &authenticator.Response{User: u, Audiences: authenticator.Audiences{"elsewhere"}}, true, nil
	}
	return nil, false, nil
}

func TestScenarios(t *testing.T) {
	kindtest.Play(t, Kinds(), func(env *kind.Env) { env.AuthenticateToken = tokens{} })
}
