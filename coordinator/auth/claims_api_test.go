package auth_test

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// The status of a ResourceClaim is written in parts: a driver tells of its devices
// on its node, and gives none to anybody.
func (c *cluster) testClaimStatus(t *testing.T) {
	const ns = "devices"
	c.namespace(t, ns)
	claims := c.admin.ResourceV1().ResourceClaims(ns)
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{
		{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "c"}}}
	claim, err := claims.Create(t.Context(), claim, create)
	if err != nil {
		t.Fatal(err)
	}
	claim.Status.Allocation = &resourcev1.AllocationResult{
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"worker"}}}}}},
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "r", Driver: "d.io", Pool: "p", Device: "a"}}},
	}
	if _, err := claims.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	here, there := c.driver(t, ns, "here", "worker"), c.driver(t, ns, "there", "other")

	tell := `{"status":{"devices":[{"driver":"d.io","pool":"p","device":"a"}]}}`
	patch := func(k kubernetes.Interface, body string) error {
		_, err := k.ResourceV1().ResourceClaims(ns).Patch(t.Context(), "gpu", types.MergePatchType, []byte(body),
			metav1.PatchOptions{}, "status")
		return err
	}
	refused := func(err error, text string) bool {
		return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "cannot "+text)
	}
	eventually(t, "refused a driver without rights", func() bool {
		return refused(patch(here, tell), "associated-node:patch resource \"resourceclaims/driver\"") &&
			refused(patch(there, tell), "arbitrary-node:patch resource \"resourceclaims/driver\"")
	})
	for _, who := range []string{"here", "there"} {
		c.grant(t, ns, who+"-driver", rbacv1.Subject{Kind: "ServiceAccount", Name: who, Namespace: ns},
			rbacv1.PolicyRule{Verbs: []string{"associated-node:patch"}, APIGroups: []string{resourcev1.GroupName},
				Resources: []string{"resourceclaims/driver"}, ResourceNames: []string{"d.io"}})
	}
	eventually(t, "the node's driver tells", func() bool { return patch(here, tell) == nil })
	if err := patch(there, `{"status":{"devices":null}}`); !refused(err, "arbitrary-node:patch") {
		t.Errorf("a driver of another node: %v", err)
	}
	if err := patch(here, `{"status":{"allocation":null}}`); !refused(err, `patch resource "resourceclaims/binding"`) {
		t.Errorf("a driver releases: %v", err)
	}
}

// driver returns the client of a pod of a node that may write claims' status.
func (c *cluster) driver(t *testing.T, ns, name, node string) kubernetes.Interface {
	t.Helper()
	core := c.admin.CoreV1()
	meta := metav1.ObjectMeta{Name: name}
	account := &corev1.ServiceAccount{ObjectMeta: meta}
	if _, err := core.ServiceAccounts(ns).Create(t.Context(), account, create); err != nil {
		t.Fatal(err)
	}
	pod, err := core.Pods(ns).Create(t.Context(), &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		NodeName: node, ServiceAccountName: name, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, create)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := core.ServiceAccounts(ns).CreateToken(t.Context(), name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Pod", Name: name, UID: pod.UID}}}, create)
	if err != nil {
		t.Fatal(err)
	}
	c.grant(t, ns, name, rbacv1.Subject{Kind: "ServiceAccount", Name: name, Namespace: ns},
		rbacv1.PolicyRule{Verbs: []string{"patch"}, APIGroups: []string{resourcev1.GroupName},
			Resources: []string{"resourceclaims/status"}})
	return c.bearer(t, issued.Status.Token)
}
