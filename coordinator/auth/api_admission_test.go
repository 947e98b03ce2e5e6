package auth_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testWebhook has a webhook outside of the cluster label ConfigMaps.
func (c *cluster) testWebhook(t *testing.T) {
	ctx := t.Context()
	c.namespace(t, "hooked")
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		patch := admissionv1.PatchTypeJSONPatch
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: review.Request.Name != "refused", PatchType: &patch,
			Patch:  []byte(`[{"op":"add","path":"/metadata/labels","value":{"hooked":"yes"}}]`),
			Result: &metav1.Status{Message: "not this one"},
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer hook.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
	none := admissionregistrationv1.SideEffectClassNone
	config := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "label"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "label.example.com", SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig:      admissionregistrationv1.WebhookClientConfig{URL: &hook.URL, CABundle: ca},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "hooked"}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"configmaps"}},
			}},
		}}}
	hooks := c.admin.AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := hooks.Create(ctx, config, create); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hooks.Delete(context.WithoutCancel(ctx), "label", metav1.DeleteOptions{}) }()
	maps := c.admin.CoreV1().ConfigMaps("hooked")
	eventually(t, "the webhook is called", func() bool {
		made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m"}}, create)
		if err != nil {
			t.Fatal(err)
		}
		return made.Labels["hooked"] == "yes"
	})
	_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}, create)
	if err == nil || !strings.Contains(err.Error(), `admission webhook "label.example.com" denied the request: not this one`) {
		t.Errorf("refused by webhook: %v", err)
	}
	config.Name, config.ResourceVersion = "bad", ""
	config.Webhooks[0].ClientConfig.URL = nil
	_, err = hooks.Create(ctx, config, create)
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "webhooks[0].clientConfig: Required value: exactly one of url or service is required") {
		t.Errorf("bad configuration: %v", err)
	}
}

func (c *cluster) testPolicy(t *testing.T) {
	ctx := t.Context()
	c.namespace(t, "ruled")
	api := c.admin.AdmissionregistrationV1()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "no-bad"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{
					{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
						Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
							Resources: []string{"configmaps"}},
					}}}},
			Variables: []admissionregistrationv1.Variable{{Name: "keys", Expression: "has(object.data) ? object.data : {}"}},
			Validations: []admissionregistrationv1.Validation{
				{Expression: "!('bad' in variables.keys)", MessageExpression: "'no bad in ' + object.metadata.name"}},
		}}
	if _, err := api.ValidatingAdmissionPolicies().Create(ctx, policy, create); err != nil {
		t.Fatal(err)
	}
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(ctx,
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "no-bad"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName:        "no-bad",
				ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
				MatchResources: &admissionregistrationv1.MatchResources{
					NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "ruled"}}},
			},
		}, create); err != nil {
		t.Fatal(err)
	}
	bad := func() error {
		_, err := c.admin.CoreV1().ConfigMaps("ruled").Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "m"}, Data: map[string]string{"bad": "1"},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	eventually(t, "the policy refuses", func() bool { return bad() != nil })
	if err := bad(); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'no-bad' with binding 'no-bad' denied request: no bad in m") {
		t.Errorf("refused by policy: %v", err)
	}
	policy.Name, policy.ResourceVersion = "broken", ""
	policy.Spec.Validations[0].Expression = "object.x +"
	if _, err := api.ValidatingAdmissionPolicies().Create(ctx, policy, create); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "spec.validations[0].expression: Invalid value") {
		t.Errorf("bad expression: %v", err)
	}
}

// PSA-1.
func (c *cluster) testPodSecurity(t *testing.T) {
	ctx := t.Context()
	ns := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "safe", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}}}
	if _, err := c.admin.CoreV1().Namespaces().Create(ctx, ns, create); err != nil {
		t.Fatal(err)
	}
	if _, err := c.admin.CoreV1().ServiceAccounts("safe").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, create); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	_, err := c.admin.CoreV1().Pods("safe").Create(ctx, pod, create)
	wantError(t, err, `pods "p" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`)
	pod.Spec.HostNetwork = false
	if _, err := c.admin.CoreV1().Pods("safe").Create(ctx, pod, create); err != nil {
		t.Errorf("a harmless pod: %v", err)
	}
}
