package apiserver_test

import (
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// No patch takes its handler down.
func TestPatchThatCannotBeMerged(t *testing.T) {
	s, ctx := start(t)
	client := s.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := client.Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "a.example.com", AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://a.example.com")},
			SideEffects:  ptr.To(admissionregistrationv1.SideEffectClassNone),
		}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, patch := range []string{
		`{"webhooks":[{"name":"x","matchConditions":[null]},{"name":"x","matchConditions":[null]}]}`,
		`{"webhooks":[{"name":{}}]}`, `{"webhooks":[{"name":["(",null,{}]}]}`,
	} {
		_, err := client.Patch(ctx, "a", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "the patch cannot be merged: ") {
			t.Errorf("%s: %v", patch, err)
		}
	}
	const tested = `[{"op":"test","path":"/webhooks/0/admissionReviewVersions","value":[null]}]`
	_, err := client.Patch(ctx, "a", types.JSONPatchType, []byte(tested), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "the patch cannot be applied: ") {
		t.Errorf("%s: %v", tested, err)
	}
	// Nothing is merged where there is nothing to merge with.
	_, err = client.Patch(ctx, "a", types.StrategicMergePatchType,
		[]byte(`{"metadata":{"$deleteFromPrimitiveList/finalizers":[null]}}`), metav1.PatchOptions{})
	if err != nil {
		t.Errorf("a directive with null: %v", err)
	}
	_, err = client.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`[null]`), metav1.PatchOptions{})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "cannot unmarshal array") {
		t.Errorf("a list: %v", err)
	}
	err = s.Client().CoreV1().RESTClient().Patch(types.StrategicMergePatchType).
		AbsPath("/apis/example.com/v1/things/a").Body([]byte(`{"a":[null]}`)).Do(ctx).Error()
	if !apierrors.IsNotFound(err) {
		t.Errorf("a kind that is not served: %v", err)
	}
	_, err = client.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"metadata":{"annotations":{"a":"[null"}}}`),
		metav1.PatchOptions{})
	if err != nil {
		t.Errorf("an annotation: %v", err)
	}
}

// A patch that takes the version from an object leaves one that nobody knows; kinds
// and what a strategic merge patch says of either are as they were.
func TestPatchOfVersion(t *testing.T) {
	s, ctx := start(t)
	config := rest.CopyConfig(s.Config)
	var warned warnings
	config.WarningHandler = &warned
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	maps := client.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Data: map[string]string{"k": "v"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const refused = "the name of the object (a based on URL) was undeterminable: name must be provided"
	unknown := []string{`unknown field "data"`, `unknown field "metadata"`}
	for _, c := range []struct {
		kind       types.PatchType
		patch      string
		validation string
		err        string
		warnings   []string
	}{
		{types.MergePatchType, `{"apiVersion":null}`, "", refused, unknown},
		{types.MergePatchType, `{"apiVersion":""}`, "Warn", refused, unknown},
		{types.MergePatchType, `{"apiVersion":null}`, "Ignore", refused, nil},
		{types.MergePatchType, `{"apiVersion":null}`, "Strict",
			`strict decoding error: unknown field "data", unknown field "metadata"`, nil},
		{types.JSONPatchType, `[{"op":"remove","path":"/apiVersion"}]`, "", refused, unknown},
		{types.JSONPatchType, `[{"op":"replace","path":"/apiVersion","value":"x"}]`, "", "no kind \"ConfigMap\"", nil},
		{types.MergePatchType, `{"kind":null}`, "", "", nil},
		{types.MergePatchType, `{"kind":null,"apiVersion":null}`, "", refused, unknown},
		{types.StrategicMergePatchType, `{"kind":null,"apiVersion":null}`, "", "", nil},
		{types.MergePatchType, `{"data":{"k":null}}`, "", "", nil},
	} {
		warned.texts = nil
		_, err := maps.Patch(ctx, "a", c.kind, []byte(c.patch), metav1.PatchOptions{FieldValidation: c.validation})
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s %s: %v", c.kind, c.patch, err)
		}
		if !slices.Equal(warned.texts, c.warnings) {
			t.Errorf("%s %s: warnings %q", c.kind, c.patch, warned.texts)
		}
	}
	if _, err := maps.Patch(ctx, "a", types.MergePatchType, []byte(`{"apiVersion":1}`),
		metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a number: %v", err)
	}
}

// warnings are those of the requests of one client after the other.
type warnings struct{ texts []string }

func (w *warnings) HandleWarningHeader(code int, _, text string) {
	if code == 299 {
		w.texts = append(w.texts, text)
	}
}
