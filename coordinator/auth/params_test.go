package auth_test

import (
	"context"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// A policy's author, and who binds it, must be allowed to read its parameters.
func (c *cluster) testPolicyAuthor(t *testing.T) {
	paul := c.user(t, "paul")
	subject := rbacv1.Subject{Kind: "User", Name: "paul"}
	grant := func(name string, rule rbacv1.PolicyRule) {
		t.Helper()
		meta := metav1.ObjectMeta{Name: name}
		if _, err := c.admin.RbacV1().ClusterRoles().Create(t.Context(),
			&rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule}}, create); err != nil {
			t.Fatal(err)
		}
		if _, err := c.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, Subjects: []rbacv1.Subject{subject},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		}, create); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what string, err error, text string) {
		t.Helper()
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v, want %q", what, err, text)
		}
	}
	grant("write-policies",
		rbacv1.PolicyRule{Verbs: []string{"create", "update"}, APIGroups: []string{admissionregistrationv1.GroupName},
			Resources: []string{"*"}})
	match := &admissionregistrationv1.MatchResources{
		ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{
			{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"},
					Resources: []string{"deployments"}},
			}}}}
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "limit"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			ParamKind: &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}, MatchConstraints: match,
			Validations: []admissionregistrationv1.Validation{{Expression: "object.spec.replicas <= int(params.data.max)"}},
		}}
	mutating := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "limit"},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			ParamKind: policy.Spec.ParamKind, MatchConstraints: match,
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{
				{PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
					ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: "Object{spec: Object.spec{replicas: int(params.data.max)}}"}}},
		}}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "limit"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        "limit",
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Audit},
			ParamRef: &admissionregistrationv1.ParamRef{Name: "max", Namespace: "default",
				ParameterNotFoundAction: ptr.To(admissionregistrationv1.AllowAction)},
		}}
	mutatingBinding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "limit"}, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{
			PolicyName: "limit", ParamRef: binding.Spec.ParamRef,
		}}
	api := paul.AdmissionregistrationV1()
	eventually(t, "paul may write policies", func() bool {
		_, err := api.ValidatingAdmissionPolicies().Create(t.Context(), policy, create)
		return apierrors.IsInvalid(err)
	})
	const kind = `must have "get" permission on all objects of the referenced paramKind (kind=ConfigMap, apiVersion=v1)`
	_, err := api.ValidatingAdmissionPolicies().Create(t.Context(), policy, create)
	refused("policy", err, `spec.paramKind: Forbidden: user "paul" `+kind)
	_, err = api.MutatingAdmissionPolicies().Create(t.Context(), mutating, create)
	refused("mutating policy", err, kind)
	_, err = api.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, create)
	refused("binding before its policy", err, `spec.paramRef: Forbidden: user "paul" must have "get" permission for all resources, and policy "limit" does not tell yet`)

	plain := policy.DeepCopy()
	plain.Spec.ParamKind, plain.Spec.Validations[0].Expression = nil, "true"
	if plain, err = api.ValidatingAdmissionPolicies().Create(t.Context(), plain, create); err != nil {
		t.Fatalf("policy without parameters: %v", err)
	}
	policy.ResourceVersion = plain.ResourceVersion
	_, err = api.ValidatingAdmissionPolicies().Update(t.Context(), policy, metav1.UpdateOptions{})
	refused("parameters added", err, kind)

	if _, err = c.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().Update(t.Context(), policy,
		metav1.UpdateOptions{}); err != nil {
		t.Fatalf("an administrator's update: %v", err)
	}
	_, err = api.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, create)
	refused("binding", err, `user "paul" must have "get" permission on the object referenced by paramRef`)

	grant("read-config", rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}})
	eventually(t, "paul may read", func() bool {
		_, err = api.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, create)
		return err == nil
	})
	if _, err = api.MutatingAdmissionPolicies().Create(t.Context(), mutating, create); err != nil {
		t.Errorf("mutating policy of who may read: %v", err)
	}
	if _, err = api.MutatingAdmissionPolicyBindings().Create(t.Context(), mutatingBinding, create); err != nil {
		t.Errorf("mutating binding of who may read: %v", err)
	}
	selects := binding.DeepCopy()
	selects.Name, selects.Spec.ParamRef.Name, selects.Spec.ParamRef.Selector = "all", "", &metav1.LabelSelector{}
	_, err = api.ValidatingAdmissionPolicyBindings().Create(t.Context(), selects, create)
	refused("binding that selects", err, `must have "list" permission on the object referenced by paramRef`)
	for _, remove := range []func(context.Context, string, metav1.DeleteOptions) error{
		c.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete,
		c.admin.AdmissionregistrationV1().MutatingAdmissionPolicies().Delete,
	} {
		if err := remove(t.Context(), "limit", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
}
