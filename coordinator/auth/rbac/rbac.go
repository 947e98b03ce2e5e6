package rbac

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"
)

// Authorizer decides by RBAC. It has no opinion until it is connected and its
// informers have synced. Use New.
type Authorizer struct {
	world atomic.Pointer[world]
}

// world is what the informers know.
type world struct {
	roles               rbaclisters.RoleLister
	clusterRoles        rbaclisters.ClusterRoleLister
	roleBindings        cache.Indexer
	clusterRoleBindings cache.Indexer
	synced              []cache.InformerSynced
}

// New returns an authorizer that is not connected yet.
func New() *Authorizer { return &Authorizer{} }

// bySubject indexes bindings; a RoleBinding's keys begin with its namespace.
const bySubject = "rbac.shoal.io/subject"

// Connect takes the informers of the four kinds from the factory; call it
// before the factory starts.
func (a *Authorizer) Connect(f informers.SharedInformerFactory) error {
	v1 := f.Rbac().V1()
	indexers := cache.Indexers{bySubject: subjectKeys}
	if err := v1.RoleBindings().Informer().AddIndexers(indexers); err != nil {
		return fmt.Errorf("index role bindings: %w", err)
	}
	if err := v1.ClusterRoleBindings().Informer().AddIndexers(indexers); err != nil {
		return fmt.Errorf("index cluster role bindings: %w", err)
	}
	a.world.Store(&world{
		roles:               v1.Roles().Lister(),
		clusterRoles:        v1.ClusterRoles().Lister(),
		roleBindings:        v1.RoleBindings().Informer().GetIndexer(),
		clusterRoleBindings: v1.ClusterRoleBindings().Informer().GetIndexer(),
		synced: []cache.InformerSynced{
			v1.Roles().Informer().HasSynced, v1.ClusterRoles().Informer().HasSynced,
			v1.RoleBindings().Informer().HasSynced, v1.ClusterRoleBindings().Informer().HasSynced,
		},
	})
	return nil
}

// HasSynced says whether the authorizer knows all roles and bindings.
func (a *Authorizer) HasSynced() bool {
	w := a.world.Load()
	if w == nil {
		return false
	}
	for _, synced := range w.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// Authorize implements authorizer.Authorizer, with upstream's reason texts.
func (a *Authorizer) Authorize(_ context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	var reason string
	var errs []error
	a.visit(attrs.GetUser(), attrs.GetNamespace(), func(b *binding, rule *rbacv1.PolicyRule, err error) bool {
		if err != nil {
			errs = append(errs, err)
			return true
		}
		if Allows(attrs, rule) {
			reason = "RBAC: allowed by " + b.String()
			return false
		}
		return true
	})
	if reason != "" {
		return authorizer.DecisionAllow, reason, nil
	}
	if len(errs) > 0 {
		return authorizer.DecisionNoOpinion, fmt.Sprintf("RBAC: %v", utilerrors.NewAggregate(errs)), nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// RulesFor lists the rules that apply to a user, cluster-wide ones and, with a
// namespace, those of the namespace. Rules returned beside an error are valid.
func (a *Authorizer) RulesFor(_ context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	var rules []rbacv1.PolicyRule
	var errs []error
	a.visit(u, namespace, func(_ *binding, rule *rbacv1.PolicyRule, err error) bool {
		if err != nil {
			errs = append(errs, err)
		} else {
			rules = append(rules, *rule)
		}
		return true
	})
	return rules, utilerrors.NewAggregate(errs)
}

// visitor sees each rule, or the error of resolving a binding's role; it
// returns false to stop.
type visitor func(b *binding, rule *rbacv1.PolicyRule, err error) bool

func (a *Authorizer) visit(u user.Info, namespace string, visit visitor) {
	w := a.world.Load()
	if w == nil || u == nil {
		return
	}
	keys := userKeys(u)
	for i := range keys {
		if !w.visitBindings(w.clusterRoleBindings, keys, i, "", visit) {
			return
		}
	}
	if namespace == "" {
		return
	}
	for i := range keys {
		if !w.visitBindings(w.roleBindings, keys, i, namespace, visit) {
			return
		}
	}
}

// visitBindings visits the bindings of one of a user's keys, but for those that an
// earlier key has led to: a user's name and several groups may be in one binding.
func (w *world) visitBindings(index cache.Indexer, keys []string, i int, namespace string, visit visitor) bool {
	key := keys[i]
	if namespace != "" {
		key = namespace + "/" + key
	}
	found, err := index.ByIndex(bySubject, key)
	if err != nil {
		return visit(nil, nil, err)
	}
	for _, obj := range found {
		b := bindingOf(obj)
		if b.firstOf(keys[:i]) != nil {
			continue
		}
		b.subject = b.firstOf(keys)
		rules, err := w.rules(b.ref, namespace)
		if err != nil {
			if !visit(&b, nil, err) {
				return false
			}
			continue
		}
		for i := range rules {
			if !visit(&b, &rules[i], nil) {
				return false
			}
		}
	}
	return true
}

func (w *world) rules(ref *rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	switch ref.Kind {
	case "Role":
		role, err := w.roles.Roles(namespace).Get(ref.Name)
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	case "ClusterRole":
		role, err := w.clusterRoles.Get(ref.Name)
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	}
	return nil, fmt.Errorf("unsupported role reference kind: %q", ref.Kind)
}

func userKeys(u user.Info) []string {
	groups := u.GetGroups()
	keys := make([]string, 0, len(groups)+1)
	keys = append(keys, "u:"+u.GetName())
	for _, g := range groups {
		keys = append(keys, "g:"+g)
	}
	return keys
}

// subjectKeys is the index function of both binding kinds.
func subjectKeys(obj any) ([]string, error) {
	b := bindingOf(obj)
	prefix := ""
	if b.namespace != "" {
		prefix = b.namespace + "/"
	}
	keys := make([]string, 0, len(b.subjects))
	for i := range b.subjects {
		if key := subjectKey(&b.subjects[i], b.namespace); key != "" {
			keys = append(keys, prefix+key)
		}
	}
	return keys, nil
}

// subjectKey is empty for a subject that no user can be. A service account
// without a namespace means the binding's.
func subjectKey(s *rbacv1.Subject, bindingNamespace string) string {
	switch s.Kind {
	case rbacv1.UserKind:
		return "u:" + s.Name
	case rbacv1.GroupKind:
		return "g:" + s.Name
	case rbacv1.ServiceAccountKind:
		namespace := s.Namespace
		if namespace == "" {
			namespace = bindingNamespace
		}
		if namespace != "" {
			return "u:" + serviceaccount.MakeUsername(namespace, s.Name)
		}
	}
	return ""
}

// binding is a RoleBinding or ClusterRoleBinding.
type binding struct {
	kind, namespace, name string
	ref                   *rbacv1.RoleRef
	subjects              []rbacv1.Subject
	subject               *rbacv1.Subject // the first that is the user
}

func bindingOf(obj any) binding {
	switch o := obj.(type) {
	case *rbacv1.RoleBinding:
		return binding{kind: "RoleBinding", namespace: o.Namespace, name: o.Name, ref: &o.RoleRef, subjects: o.Subjects}
	case *rbacv1.ClusterRoleBinding:
		return binding{kind: "ClusterRoleBinding", name: o.Name, ref: &o.RoleRef, subjects: o.Subjects}
	}
	return binding{ref: &rbacv1.RoleRef{}}
}

// firstOf is the first subject with one of the keys of a user, nil: none.
func (b *binding) firstOf(keys []string) *rbacv1.Subject {
	for i := range b.subjects {
		if slices.Contains(keys, subjectKey(&b.subjects[i], b.namespace)) {
			return &b.subjects[i]
		}
	}
	return nil
}

// String is upstream's text of a binding in a reason: names come before
// namespaces there.
func (b *binding) String() string {
	name := b.name
	if b.namespace != "" {
		name += "/" + b.namespace
	}
	s := fmt.Sprintf("%s %q of %s %q", b.kind, name, b.ref.Kind, b.ref.Name)
	if b.subject == nil {
		return s
	}
	return s + " to " + describe(b.subject, b.namespace)
}

func describe(s *rbacv1.Subject, bindingNamespace string) string {
	if s.Kind != rbacv1.ServiceAccountKind {
		return fmt.Sprintf("%s %q", s.Kind, s.Name)
	}
	namespace := s.Namespace
	if namespace == "" {
		namespace = bindingNamespace
	}
	return fmt.Sprintf("%s %q", s.Kind, s.Name+"/"+namespace)
}
