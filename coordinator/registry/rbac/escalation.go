package rbac

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// everything is what a role with an aggregation rule may come to hold.
var everything = []rbacv1.PolicyRule{
	{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
	{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
}

func guardRole(env *kind.Env, store *genericregistry.Store) {
	kind.Guard(store, func(ctx context.Context, obj, _ runtime.Object) error {
		r := obj.(*rbacv1.Role)
		return rights{env}.roleWrite(ctx, "roles", r.Name, r.Rules)
	})
}

func guardClusterRole(env *kind.Env, store *genericregistry.Store) {
	kind.Guard(store, func(ctx context.Context, obj, old runtime.Object) error {
		r := obj.(*rbacv1.ClusterRole)
		if err := (rights{env}).roleWrite(ctx, "clusterroles", r.Name, r.Rules); err != nil {
			return err
		}
		before, _ := old.(*rbacv1.ClusterRole)
		if !aggregates(r) && (before == nil || !aggregates(before)) {
			return nil
		}
		if (rights{env}).roleWrite(ctx, "clusterroles", r.Name, everything) != nil {
			return forbidden("clusterroles", r.Name, errors.New("must have cluster-admin privileges to use the aggregationRule"))
		}
		return nil
	})
}

func aggregates(r *rbacv1.ClusterRole) bool {
	return r.AggregationRule != nil && len(r.AggregationRule.ClusterRoleSelectors) > 0
}

func guardRoleBinding(env *kind.Env, store *genericregistry.Store) {
	kind.Guard(store, func(ctx context.Context, obj, _ runtime.Object) error {
		b := obj.(*rbacv1.RoleBinding)
		namespace := b.Namespace
		if ns, ok := request.NamespaceFrom(ctx); ok && namespace == "" {
			namespace = ns
		}
		return rights{env}.bindingWrite(ctx, "rolebindings", b.Name, namespace, &b.RoleRef)
	})
}

func guardClusterRoleBinding(env *kind.Env, store *genericregistry.Store) {
	kind.Guard(store, func(ctx context.Context, obj, _ runtime.Object) error {
		b := obj.(*rbacv1.ClusterRoleBinding)
		return rights{env}.bindingWrite(ctx, "clusterrolebindings", b.Name, "", &b.RoleRef)
	})
}

// rights asks the server's own authorizer and rules.
type rights struct{ *kind.Env }

// roleWrite lets those pass who may "escalate" the role, or hold all its rules.
func (r rights) roleWrite(ctx context.Context, resource, name string, rules []rbacv1.PolicyRule) error {
	info, ok := request.RequestInfoFrom(ctx)
	if ok && info.IsResourceRequest && info.APIGroup == rbacv1.GroupName && info.Resource == resource &&
		r.may(ctx, "escalate", resource, info.Namespace, info.Name) {
		return nil
	}
	if err := r.holds(ctx, rules); err != nil {
		return forbidden(resource, name, err)
	}
	return nil
}

// bindingWrite lets those pass who may "bind" the role, or hold all its rules.
func (r rights) bindingWrite(ctx context.Context, resource, name, namespace string, ref *rbacv1.RoleRef) error {
	roles := map[string]string{"Role": "roles", "ClusterRole": "clusterroles"}[ref.Kind]
	if roles != "" && ref.APIGroup == rbacv1.GroupName && r.may(ctx, "bind", roles, namespace, ref.Name) {
		return nil
	}
	rules, err := r.rulesOf(ctx, ref, namespace)
	if err != nil {
		return err
	}
	if err := r.holds(ctx, rules); err != nil {
		return forbidden(resource, name, err)
	}
	return nil
}

func (r rights) rulesOf(ctx context.Context, ref *rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	switch ref.Kind {
	case "Role":
		role, err := r.Client.RbacV1().Roles(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	case "ClusterRole":
		role, err := r.Client.RbacV1().ClusterRoles().Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	}
	return nil, fmt.Errorf("unsupported role reference kind: %q", ref.Kind)
}

func (r rights) may(ctx context.Context, verb, resource, namespace, name string) bool {
	return r.May(ctx, authorizer.AttributesRecord{
		Verb: verb, Namespace: namespace, APIGroup: rbacv1.GroupName, APIVersion: "*", Resource: resource,
		Name: name, ResourceRequest: true,
	})
}

// holds returns upstream's text of what the user lacks to grant the rules.
func (r rights) holds(ctx context.Context, rules []rbacv1.PolicyRule) error {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return errors.New("no user on context")
	}
	if r.Rules == nil {
		return errors.New("the server resolves no RBAC rules")
	}
	namespace, _ := request.NamespaceFrom(ctx)
	own, ruleErr := r.Rules.RulesFor(ctx, u, namespace)
	covered, missing := validation.Covers(own, rules)
	if covered {
		return nil
	}
	msg := fmt.Sprintf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		u.GetName(), u.GetGroups(), strings.Join(describe(missing), "\n"))
	if ruleErr != nil {
		msg += fmt.Sprintf("; resolution errors: %v", []error{ruleErr})
	}
	return errors.New(msg)
}

func forbidden(resource, name string, err error) error {
	return apierrors.NewForbidden(rbacv1.Resource(resource), name, err)
}

// describe joins rules that differ only in their verbs, and sorts the texts.
func describe(rules []rbacv1.PolicyRule) []string {
	type target struct{ group, resource, name string }
	var out []string
	verbs := map[target][]string{}
	for _, r := range rules {
		if len(r.NonResourceURLs) > 0 || len(r.APIGroups) != 1 || len(r.Resources) != 1 || len(r.ResourceNames) > 1 {
			out = append(out, text(&r))
			continue
		}
		t := target{group: r.APIGroups[0], resource: r.Resources[0]}
		if len(r.ResourceNames) == 1 {
			t.name = r.ResourceNames[0]
		}
		verbs[t] = append(verbs[t], r.Verbs...)
	}
	for t, v := range verbs {
		rule := rbacv1.PolicyRule{APIGroups: []string{t.group}, Resources: []string{t.resource}, Verbs: v}
		if t.name != "" {
			rule.ResourceNames = []string{t.name}
		}
		out = append(out, text(&rule))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func text(r *rbacv1.PolicyRule) string {
	var parts []string
	for _, p := range []struct {
		name   string
		values []string
	}{
		{"APIGroups", r.APIGroups}, {"Resources", r.Resources}, {"NonResourceURLs", r.NonResourceURLs},
		{"ResourceNames", r.ResourceNames}, {"Verbs", r.Verbs},
	} {
		if len(p.values) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%q", p.name, p.values))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
