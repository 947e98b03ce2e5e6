package auth_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/auth"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// Administrators have all rights until their binding is deleted, which no restart
// undoes; what the API server shows kubelets opens kubelets and nothing else.
func TestAdministrators(t *testing.T) {
	c := start(t)
	admin := c.user(t, pki.AdminUser, pki.AdminGroup)
	eventually(t, "the administrators' rights", func() bool {
		return c.canI(t, admin, "delete", "namespaces", "", "") && c.canI(t, admin, "impersonate", "users", "", "")
	})
	kubelets := c.user(t, "kube-apiserver-kubelet-client", pki.KubeletClientGroup)
	for _, resource := range []string{"secrets", "pods", "configmaps"} {
		if c.canI(t, kubelets, "get", resource, "", "kube-system") {
			t.Errorf("the kubelets' client may get %s", resource)
		}
	}
	if !c.canI(t, kubelets, "get", "nodes", "", "") || !c.canI(t, kubelets, "create", "nodes/checkpoint", "", "") {
		t.Error("the kubelets' client may not get nodes, or not have containers written down")
	}

	if err := c.admin.RbacV1().ClusterRoleBindings().Delete(t.Context(), pki.AdminGroup,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the administrators' rights are gone",
		func() bool { return !c.canI(t, admin, "delete", "namespaces", "", "") })
	if err := auth.EnsureBootstrapPolicy(t.Context(), c.Client()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.admin.RbacV1().ClusterRoleBindings().Get(t.Context(), pki.AdminGroup,
		metav1.GetOptions{}); err == nil {
		t.Error("a restart brings the binding back")
	}
}
