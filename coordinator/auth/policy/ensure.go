package policy

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// parallel writes share the store's group commit, so that the first start does
// not pay one disk sync for each of some 130 objects.
const parallel = 32

// Ensure creates what is missing of the policy and adds missing rules and
// subjects to what is there. Objects annotated with
// rbac.authorization.kubernetes.io/autoupdate other than "true" stay as they
// are. When nothing differs it costs four lists.
func (p *Policy) Ensure(ctx context.Context, client kubernetes.Interface) error {
	have, err := load(ctx, client)
	if err != nil {
		return fmt.Errorf("rbac policy: %w", err)
	}
	if err := ensureNamespaces(ctx, client, p); err != nil {
		return fmt.Errorf("rbac policy: %w", err)
	}
	return runParallel(p.steps(ctx, client, have))
}

// existing is what the cluster has, by namespace/name.
type existing struct {
	clusterRoles        map[string]*rbacv1.ClusterRole
	clusterRoleBindings map[string]*rbacv1.ClusterRoleBinding
	roles               map[string]*rbacv1.Role
	roleBindings        map[string]*rbacv1.RoleBinding
}

func load(ctx context.Context, client kubernetes.Interface) (*existing, error) {
	rbac, all := client.RbacV1(), metav1.ListOptions{}
	clusterRoles, err1 := rbac.ClusterRoles().List(ctx, all)
	clusterRoleBindings, err2 := rbac.ClusterRoleBindings().List(ctx, all)
	roles, err3 := rbac.Roles("").List(ctx, all)
	roleBindings, err4 := rbac.RoleBindings("").List(ctx, all)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	return &existing{
		clusterRoles:        byName(clusterRoles.Items),
		clusterRoleBindings: byName(clusterRoleBindings.Items),
		roles:               byName(roles.Items),
		roleBindings:        byName(roleBindings.Items),
	}, nil
}

func byName[T any, P interface {
	*T
	metav1.Object
}](items []T) map[string]P {
	out := make(map[string]P, len(items))
	for i := range items {
		o := P(&items[i])
		out[o.GetNamespace()+"/"+o.GetName()] = o
	}
	return out
}

// steps returns one write for each object that differs.
func (p *Policy) steps(ctx context.Context, client kubernetes.Interface, have *existing) []func() error {
	var steps []func() error
	rbac, opts := client.RbacV1(), metav1.CreateOptions{}
	for _, want := range p.ClusterRoles {
		if old := have.clusterRoles["/"+want.Name]; old == nil {
			steps = append(steps,
				created(func() error { _, err := rbac.ClusterRoles().Create(ctx, want, opts); return err }))
		} else if !skip(old) &&
			!(sameAggregation(old.AggregationRule, want.AggregationRule) && covered(old, want, old.Rules, want.Rules)) {
			steps = append(steps, reconcileRole(reconciliation.ClusterRoleRuleOwner{ClusterRole: want.DeepCopy()},
				reconciliation.ClusterRoleModifier{Client: rbac.ClusterRoles()}))
		}
	}
	for _, want := range p.Roles {
		if old := have.roles[want.Namespace+"/"+want.Name]; old == nil {
			steps = append(steps,
				created(func() error { _, err := rbac.Roles(want.Namespace).Create(ctx, want, opts); return err }))
		} else if !skip(old) && !covered(old, want, old.Rules, want.Rules) {
			steps = append(steps, reconcileRole(reconciliation.RoleRuleOwner{Role: want.DeepCopy()},
				reconciliation.RoleModifier{Client: rbac, NamespaceClient: client.CoreV1().Namespaces()}))
		}
	}
	for _, want := range p.ClusterRoleBindings {
		if old := have.clusterRoleBindings["/"+want.Name]; old == nil {
			steps = append(steps,
				created(func() error { _, err := rbac.ClusterRoleBindings().Create(ctx, want, opts); return err }))
		} else if !skip(old) && !bound(old.RoleRef, want.RoleRef, old.Subjects, want.Subjects) {
			steps = append(steps,
				reconcileBinding(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: want.DeepCopy()},
					reconciliation.ClusterRoleBindingClientAdapter{Client: rbac.ClusterRoleBindings()}))
		}
	}
	for _, want := range p.RoleBindings {
		if old := have.roleBindings[want.Namespace+"/"+want.Name]; old == nil {
			steps = append(steps,
				created(func() error { _, err := rbac.RoleBindings(want.Namespace).Create(ctx, want, opts); return err }))
		} else if !skip(old) && !bound(old.RoleRef, want.RoleRef, old.Subjects, want.Subjects) {
			steps = append(steps, reconcileBinding(reconciliation.RoleBindingAdapter{RoleBinding: want.DeepCopy()},
				reconciliation.RoleBindingClientAdapter{Client: rbac, NamespaceClient: client.CoreV1().Namespaces()}))
		}
	}
	return steps
}

// skip says whether an administrator took the object out of automatic updates.
func skip(old metav1.Object) bool {
	return old.GetAnnotations()[rbacv1.AutoUpdateAnnotationKey] == "false"
}

func covered(old, want metav1.Object, oldRules, wantRules []rbacv1.PolicyRule) bool {
	for k, v := range want.GetLabels() {
		if old.GetLabels()[k] != v {
			return false
		}
	}
	ok, _ := validation.Covers(oldRules, wantRules)
	return ok
}

func sameAggregation(old, want *rbacv1.AggregationRule) bool {
	if want == nil {
		return true
	}
	if old == nil {
		return false
	}
	for _, w := range want.ClusterRoleSelectors {
		if !hasSelector(old.ClusterRoleSelectors, w) {
			return false
		}
	}
	return true
}

func hasSelector(list []metav1.LabelSelector, want metav1.LabelSelector) bool {
	for _, s := range list {
		if metav1.FormatLabelSelector(&s) == metav1.FormatLabelSelector(&want) {
			return true
		}
	}
	return false
}

func bound(oldRef, wantRef rbacv1.RoleRef, old, want []rbacv1.Subject) bool {
	has := make(map[rbacv1.Subject]bool, len(old))
	for _, s := range old {
		has[s] = true
	}
	for _, s := range want {
		if !has[s] {
			return false
		}
	}
	return oldRef == wantRef
}

func created(create func() error) func() error {
	return func() error {
		if err := create(); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		return nil
	}
}

func reconcileRole(role reconciliation.RuleOwner, client reconciliation.RuleOwnerModifier) func() error {
	return func() error {
		_, err := (&reconciliation.ReconcileRoleOptions{Role: role, Confirm: true, Client: client}).Run()
		return err
	}
}

func reconcileBinding(binding reconciliation.RoleBinding, client reconciliation.RoleBindingModifier) func() error {
	return func() error {
		_, err := (&reconciliation.ReconcileRoleBindingOptions{RoleBinding: binding, Confirm: true, Client: client}).
			Run()
		return err
	}
}

func ensureNamespaces(ctx context.Context, client kubernetes.Interface, p *Policy) error {
	seen := map[string]bool{}
	for _, r := range p.Roles {
		if seen[r.Namespace] {
			continue
		}
		seen[r.Namespace] = true
		_, err := client.CoreV1().Namespaces().Get(ctx, r.Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.Namespace}}
			_, err = client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

func runParallel(steps []func() error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(steps))
	slots := make(chan struct{}, parallel)
	for i, step := range steps {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = step()
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
