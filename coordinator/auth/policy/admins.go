package policy

import (
	"context"
	"encoding/json"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/pki"
)

// adminsBound on the namespace kube-system, which nobody can delete, remembers
// that the binding was made.
const adminsBound = "shoal-project.io/cluster-admins-bound"

// EnsureAdmins gives pki.AdminGroup all rights, once in a cluster's life: who
// deletes the binding has revoked every administrator's certificate, and no
// restart may bring it back.
func EnsureAdmins(ctx context.Context, client kubernetes.Interface) error {
	system, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("bind %s: %w", pki.AdminGroup, err)
	}
	if system.Annotations[adminsBound] != "" {
		return nil
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: pki.AdminGroup},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: pki.AdminGroup}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("bind %s: %w", pki.AdminGroup, err)
	}
	note, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{adminsBound: "true"}}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Namespaces().Patch(ctx, metav1.NamespaceSystem, types.MergePatchType,
		note, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("bind %s: %w", pki.AdminGroup, err)
	}
	return nil
}
