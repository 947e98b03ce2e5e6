package apiserver_test

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// No patch takes its handler down.
func TestPatchOfNulls(t *testing.T) {
	s, ctx := start(t)
	client := s.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := client.Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const twice = `{"webhooks":[{"name":"x","matchConditions":[null]},{"name":"x","matchConditions":[null]}]}`
	_, err := client.Patch(ctx, "a", types.StrategicMergePatchType, []byte(twice), metav1.PatchOptions{})
	if !apierrors.IsBadRequest(err) {
		t.Errorf("a list of null: %v", err)
	}
	_, err = client.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"metadata":{"annotations":{"a":"[null"}}}`),
		metav1.PatchOptions{})
	if err != nil {
		t.Errorf("an annotation: %v", err)
	}
}
