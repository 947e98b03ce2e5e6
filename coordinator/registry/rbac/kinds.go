// Package rbac declares the API group rbac.authorization.k8s.io/v1 and keeps
// users from granting rights that they do not have themselves.
package rbac

import (
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	rbacv1beta1 "k8s.io/api/rbac/v1beta1" // its descriptions are those of the tables
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Kinds lists the group's kinds.
func Kinds() []kind.Kind {
	return []kind.Kind{role(), clusterRole(), roleBinding(), clusterRoleBinding()}
}

func role() kind.Kind {
	return kind.Of[rbacv1.Role]{
		Names: kind.Names{
			GroupVersion: rbacv1.SchemeGroupVersion, Resource: "roles", Singular: "role",
			NameRule: path.ValidatePathSegmentName, List: &rbacv1.RoleList{},
		},
		Validate:            validateRole,
		ValidateUpdate:      validateRoleUpdate,
		AllowCreateOnUpdate: true,
		Store:               guardRole,
	}.Kind()
}

func clusterRole() kind.Kind {
	return kind.Of[rbacv1.ClusterRole]{
		Names: kind.Names{
			GroupVersion: rbacv1.SchemeGroupVersion, Resource: "clusterroles", Singular: "clusterrole",
			ClusterScoped: true, NameRule: path.ValidatePathSegmentName, List: &rbacv1.ClusterRoleList{},
		},
		Validate:            validateClusterRole,
		ValidateUpdate:      validateClusterRoleUpdate,
		AllowCreateOnUpdate: true,
		Store:               guardClusterRole,
	}.Kind()
}

func roleBinding() kind.Kind {
	return kind.Of[rbacv1.RoleBinding]{
		Names: kind.Names{
			GroupVersion: rbacv1.SchemeGroupVersion, Resource: "rolebindings", Singular: "rolebinding",
			NameRule: path.ValidatePathSegmentName, List: &rbacv1.RoleBindingList{},
		},
		Default:             func(b *rbacv1.RoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) },
		Validate:            validateRoleBinding,
		ValidateUpdate:      validateRoleBindingUpdate,
		AllowCreateOnUpdate: true,
		Columns:             bindingColumns("roleBinding", rbacv1beta1.RoleBinding{}.SwaggerDoc()["roleRef"]),
		Row: func(b *rbacv1.RoleBinding) []any {
			return bindingRow(&b.ObjectMeta, &b.RoleRef, b.Subjects)
		},
		Store: guardRoleBinding,
	}.Kind()
}

func clusterRoleBinding() kind.Kind {
	return kind.Of[rbacv1.ClusterRoleBinding]{
		Names: kind.Names{
			GroupVersion: rbacv1.SchemeGroupVersion, Resource: "clusterrolebindings", Singular: "clusterrolebinding",
			ClusterScoped: true, NameRule: path.ValidatePathSegmentName, List: &rbacv1.ClusterRoleBindingList{},
		},
		Default:             func(b *rbacv1.ClusterRoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) },
		Validate:            validateClusterRoleBinding,
		ValidateUpdate:      validateClusterRoleBindingUpdate,
		AllowCreateOnUpdate: true,
		Columns: bindingColumns("clusterRoleBinding",
			rbacv1beta1.ClusterRoleBinding{}.SwaggerDoc()["roleRef"]),
		Row: func(b *rbacv1.ClusterRoleBinding) []any {
			return bindingRow(&b.ObjectMeta, &b.RoleRef, b.Subjects)
		},
		Store: guardClusterRoleBinding,
	}.Kind()
}

func defaultBinding(ref *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	if ref.APIGroup == "" {
		ref.APIGroup = rbacv1.GroupName
	}
	for i := range subjects {
		s := &subjects[i]
		if s.APIGroup == "" && (s.Kind == rbacv1.UserKind || s.Kind == rbacv1.GroupKind) {
			s.APIGroup = rbacv1.GroupName
		}
	}
}

func bindingColumns(what, roleDoc string) []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Role", "string", roleDoc),
		kind.AgeColumn(),
		kind.Wide("Users", "string", "Users in the "+what),
		kind.Wide("Groups", "string", "Groups in the "+what),
		kind.Wide("ServiceAccounts", "string", "ServiceAccounts in the "+what),
	}
}

func bindingRow(m *metav1.ObjectMeta, ref *rbacv1.RoleRef, subjects []rbacv1.Subject) []any {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		}
	}
	return []any{
		m.Name, fmt.Sprintf("%s/%s", ref.Kind, ref.Name), kind.Age(m.CreationTimestamp),
		strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", "),
	}
}
