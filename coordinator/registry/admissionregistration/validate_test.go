package admissionregistration

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"
)

func TestValidateWebhook(t *testing.T) {
	base := func() admissionregistrationv1.ValidatingWebhook {
		return admissionregistrationv1.ValidatingWebhook{
			Name: "a.example.com", SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				Service: &admissionregistrationv1.ServiceReference{Namespace: "n", Name: "s"}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{"CREATE"},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"pods"}},
			}},
		}
	}
	for name, tt := range map[string]struct {
		change func(*admissionregistrationv1.ValidatingWebhook)
		want   string
	}{
		"good":         {func(*admissionregistrationv1.ValidatingWebhook) {}, ""},
		"short_name":   {func(w *admissionregistrationv1.ValidatingWebhook) { w.Name = "a" }, `webhooks[0].name: Invalid value: "a": should be a domain with at least three segments separated by dots`},
		"side_effects": {func(w *admissionregistrationv1.ValidatingWebhook) { w.SideEffects = nil }, "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun"},
		"some_effects": {func(w *admissionregistrationv1.ValidatingWebhook) {
			w.SideEffects = ptr.To(admissionregistrationv1.SideEffectClassSome)
		}, `webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun"`},
		"timeout": {func(w *admissionregistrationv1.ValidatingWebhook) { w.TimeoutSeconds = ptr.To[int32](31) }, "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds"},
		"plain_http": {func(w *admissionregistrationv1.ValidatingWebhook) {
			w.ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: ptr.To("http://x/")}
		}, `webhooks[0].clientConfig.url: Invalid value: "http": 'https' is the only allowed URL scheme`},
		"no_operations": {func(w *admissionregistrationv1.ValidatingWebhook) { w.Rules[0].Operations = nil }, "webhooks[0].rules[0].operations: Required value"},
		"star_and_more": {func(w *admissionregistrationv1.ValidatingWebhook) {
			w.Rules[0].Operations = []admissionregistrationv1.OperationType{"*", "CREATE"}
		}, "if '*' is present, must not specify other operations"},
		"all_and_pods": {func(w *admissionregistrationv1.ValidatingWebhook) {
			w.Rules[0].Resources = []string{"*", "pods"}
		}, "if '*' is present, must not specify other resources without subresources"},
		"covered": {func(w *admissionregistrationv1.ValidatingWebhook) {
			w.Rules[0].Resources = []string{"pods/*", "pods/log"}
		}, "if 'pods/*' is present, must not specify pods/log"},
		"review_versions": {func(w *admissionregistrationv1.ValidatingWebhook) {
			w.AdmissionReviewVersions = []string{"v9"}
		}, "must include at least one of v1, v1beta1"},
		"condition": {func(w *admissionregistrationv1.ValidatingWebhook) {
			w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "a", Expression: "1 + 1"}}
		}, "must evaluate to bool"},
		"good_condition": {func(w *admissionregistrationv1.ValidatingWebhook) {
			w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "a", Expression: "request.name != 'x'"}}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			list := []admissionregistrationv1.ValidatingWebhook{base()}
			tt.change(&list[0])
			hooks := validatingHooks(list)
			defaultAll(hooks)
			err := validateHooks(hooks, nil).ToAggregate()
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			// What is stored stays writable, and defaulting is done once.
			if name == "some_effects" || name == "review_versions" {
				if errs := validateHooks(hooks, hooks); len(errs) > 0 {
					t.Errorf("an update that changes nothing: %v", errs)
				}
			}
		})
	}
	two := []admissionregistrationv1.ValidatingWebhook{base(), base()}
	if errs := validateHooks(validatingHooks(two), nil); len(errs) != 1 || !strings.Contains(errs[0].Error(), `webhooks[1].name: Duplicate value: "a.example.com"`) {
		t.Errorf("two of one name: %v", errs)
	}
}
