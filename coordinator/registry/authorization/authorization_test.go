package authorization

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/kind/kindtest"
)

// rules decide by the verb, and give what they were asked as their reason.
type rules struct{}

func (rules) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	asked := []string{a.GetUser().GetName(), a.GetVerb(), a.GetPath()}
	if a.IsResourceRequest() {
		asked = append(asked, a.GetNamespace(), a.GetAPIGroup(), a.GetAPIVersion(),
			a.GetResource(), a.GetSubresource(), a.GetName())
	}
	if l, _ := a.GetLabelSelector(); len(l) > 0 {
		asked = append(asked, fmt.Sprint("labels ", l))
	}
	if f, _ := a.GetFieldSelector(); len(f) > 0 {
		asked = append(asked, fmt.Sprint("fields ", f))
	}
	reason := strings.Join(asked, "|")
	switch a.GetVerb() {
	case "get", "list":
		return authorizer.DecisionAllow, reason, nil
	case "delete":
		return authorizer.DecisionDeny, reason, nil
	case "watch":
		return authorizer.DecisionNoOpinion, reason, errors.New("the webhook is away")
	}
	return authorizer.DecisionNoOpinion, reason, nil
}

func (rules) RulesFor(_ context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	list := []rbacv1.PolicyRule{
		{
			Verbs:         []string{"get"},
			APIGroups:     []string{""},
			Resources:     []string{"pods"},
			ResourceNames: []string{u.GetName()},
		},
		{Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz"}},
	}
	if namespace == "broken" {
		return list[:1], errors.New("role a is missing")
	}
	return list, nil
}

func TestScenarios(t *testing.T) {
	kindtest.Play(t, Kinds(), func(env *kind.Env) { env.Authorizer, env.Rules = rules{}, rules{} })
}
