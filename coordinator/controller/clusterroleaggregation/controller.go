package clusterroleaggregation

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

type reconciler struct {
	client kubernetes.Interface
	roles  rbaclisters.ClusterRoleLister
}

// New builds the controller; its keys are names of ClusterRoles.
func New(env controller.Env) (*controller.Loop, error) {
	informer := env.Informers.Rbac().V1().ClusterRoles()
	r := &reconciler{client: env.Client, roles: informer.Lister()}
	loop := controller.New("clusterrole-aggregation", 2, env.Log)
	loop.Reconciler = r
	controller.Watch(loop, informer.Informer(), func(old, obj *rbacv1.ClusterRole) {
		for _, name := range r.affected(old, obj) {
			loop.Add(name)
		}
	})
	return loop, nil
}

// affected lists the aggregating roles that select a role as it was or is.
func (r *reconciler) affected(versions ...*rbacv1.ClusterRole) []string {
	all, err := r.roles.List(labels.Everything())
	if err != nil {
		return nil
	}
	var names []string
	for _, v := range versions {
		if v == nil {
			continue
		}
		if v.AggregationRule != nil {
			names = append(names, v.Name)
		}
		for _, role := range all {
			if selects(role.AggregationRule, v) {
				names = append(names, role.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func selects(a *rbacv1.AggregationRule, role *rbacv1.ClusterRole) bool {
	if a == nil {
		return false
	}
	for i := range a.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&a.ClusterRoleSelectors[i])
		if err == nil && selector.Matches(labels.Set(role.Labels)) {
			return true
		}
	}
	return false
}

// Reconcile writes one aggregating role's rules when they differ.
func (r *reconciler) Reconcile(ctx context.Context, name string) (time.Duration, error) {
	role, err := r.roles.Get(name)
	if apierrors.IsNotFound(err) || err == nil && role.AggregationRule == nil {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	all, err := r.roles.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	rules, err := Aggregate(role, all)
	if err != nil {
		return 0, fmt.Errorf("aggregate %s: %w", name, err)
	}
	if equality.Semantic.DeepEqual(rules, role.Rules) {
		return 0, nil
	}
	changed := role.DeepCopy()
	changed.Rules = rules
	_, err = r.client.RbacV1().ClusterRoles().Update(ctx, changed, metav1.UpdateOptions{})
	return 0, err
}

// Aggregate returns the rules of the roles that role selects, in upstream's
// order: by selector, then by name, without doubles.
func Aggregate(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	all = slices.SortedFunc(slices.Values(all), func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	rules := []rbacv1.PolicyRule{}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, err
		}
		for _, other := range all {
			if other.Name != role.Name && selector.Matches(labels.Set(other.Labels)) {
				rules = appendNew(rules, other.Rules)
			}
		}
	}
	return rules, nil
}

func appendNew(rules, more []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	for i := range more {
		if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, more[i]) }) {
			rules = append(rules, *more[i].DeepCopy())
		}
	}
	return rules
}
