package policy

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/shoal-project/shoal/coordinator/pki"
)

// The binding is made once; deleted, it stays away.
func TestEnsureAdmins(t *testing.T) {
	ctx := context.Background()
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}})
	ensure := func() {
		t.Helper()
		if err := EnsureAdmins(ctx, client); err != nil {
			t.Fatal(err)
		}
	}
	ensure()
	bindings := client.RbacV1().ClusterRoleBindings()
	made, err := bindings.Get(ctx, pki.AdminGroup, metav1.GetOptions{})
	if err != nil || made.RoleRef.Name != "cluster-admin" || len(made.Subjects) != 1 ||
		made.Subjects[0].Name != pki.AdminGroup {
		t.Fatalf("got %+v, %v", made, err)
	}
	if err := bindings.Delete(ctx, pki.AdminGroup, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ensure()
	if _, err := bindings.Get(ctx, pki.AdminGroup, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the binding came back: %v", err)
	}
}
