// Package admissionregistration declares the API group
// admissionregistration.k8s.io/v1: the webhooks that admission calls, and the
// policies that it evaluates itself.
package admissionregistration

import (
	"context"
	"reflect"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Kinds lists the group's kinds.
func Kinds() []kind.Kind {
	return []kind.Kind{
		mutatingConfiguration(), validatingConfiguration(),
		mutatingPolicy(), mutatingPolicyBinding(), policy(), policyBinding(),
	}
}

func mutatingConfiguration() kind.Kind {
	type T = admissionregistrationv1.MutatingWebhookConfiguration
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: admissionregistrationv1.SchemeGroupVersion, Resource: "mutatingwebhookconfigurations",
			Singular: "mutatingwebhookconfiguration", Categories: []string{"api-extensions"},
			ClusterScoped: true, List: &admissionregistrationv1.MutatingWebhookConfigurationList{},
		},
		Default:  func(c *T) { defaultAll(mutatingHooks(c.Webhooks)) },
		Validate: func(_ context.Context, c *T) field.ErrorList { return validateHooks(mutatingHooks(c.Webhooks), nil) },
		Update: func(_ context.Context, c, old *T) {
			if !reflect.DeepEqual(c.Webhooks, old.Webhooks) { // an empty list is not none, for upstream
				c.Generation = old.Generation + 1
			}
		},
		ValidateUpdate: func(_ context.Context, c, old *T) field.ErrorList {
			return validateHooks(mutatingHooks(c.Webhooks), mutatingHooks(old.Webhooks))
		},
		Spec:                    func(c *T) any { return c.Webhooks },
		CountsEmpty:             true,
		DenyUnconditionalUpdate: true,
		AnyFinalizer:            true,
		Columns:                 columns(),
		Row: func(c *T) []any {
			return []any{c.Name, int64(len(c.Webhooks)), kind.Age(c.CreationTimestamp)}
		},
	}.Kind()
}

func validatingConfiguration() kind.Kind {
	type T = admissionregistrationv1.ValidatingWebhookConfiguration
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: admissionregistrationv1.SchemeGroupVersion, Resource: "validatingwebhookconfigurations",
			Singular: "validatingwebhookconfiguration", Categories: []string{"api-extensions"},
			ClusterScoped: true, List: &admissionregistrationv1.ValidatingWebhookConfigurationList{},
		},
		Default:  func(c *T) { defaultAll(validatingHooks(c.Webhooks)) },
		Validate: func(_ context.Context, c *T) field.ErrorList { return validateHooks(validatingHooks(c.Webhooks), nil) },
		Update: func(_ context.Context, c, old *T) {
			if !reflect.DeepEqual(c.Webhooks, old.Webhooks) { // an empty list is not none, for upstream
				c.Generation = old.Generation + 1
			}
		},
		ValidateUpdate: func(_ context.Context, c, old *T) field.ErrorList {
			return validateHooks(validatingHooks(c.Webhooks), validatingHooks(old.Webhooks))
		},
		Spec:                    func(c *T) any { return c.Webhooks },
		CountsEmpty:             true,
		DenyUnconditionalUpdate: true,
		AnyFinalizer:            true,
		Columns:                 columns(),
		Row: func(c *T) []any {
			return []any{c.Name, int64(len(c.Webhooks)), kind.Age(c.CreationTimestamp)}
		},
	}.Kind()
}

func columns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Webhooks", "integer", "Webhooks indicates the number of webhooks registered in this configuration"),
		kind.AgeColumn(),
	}
}

// hook is what the two webhook types have in common, by reference;
// reinvocation is nil for a validating one.
type hook struct {
	name            string
	client          *admissionregistrationv1.WebhookClientConfig
	rules           []admissionregistrationv1.RuleWithOperations
	failure         **admissionregistrationv1.FailurePolicyType
	match           **admissionregistrationv1.MatchPolicyType
	namespaces      **metav1.LabelSelector
	objects         **metav1.LabelSelector
	sideEffects     *admissionregistrationv1.SideEffectClass
	timeout         **int32
	reviewVersions  []string
	reinvocation    **admissionregistrationv1.ReinvocationPolicyType
	matchConditions []admissionregistrationv1.MatchCondition
}

func mutatingHooks(list []admissionregistrationv1.MutatingWebhook) []hook {
	out := make([]hook, len(list))
	for i := range list {
		w := &list[i]
		out[i] = hook{
			name: w.Name, client: &w.ClientConfig, rules: w.Rules, failure: &w.FailurePolicy, match: &w.MatchPolicy,
			namespaces: &w.NamespaceSelector, objects: &w.ObjectSelector, sideEffects: w.SideEffects,
			timeout:        &w.TimeoutSeconds,
			reviewVersions: w.AdmissionReviewVersions, reinvocation: &w.ReinvocationPolicy,
			matchConditions: w.MatchConditions,
		}
	}
	return out
}

func validatingHooks(list []admissionregistrationv1.ValidatingWebhook) []hook {
	out := make([]hook, len(list))
	for i := range list {
		w := &list[i]
		out[i] = hook{
			name: w.Name, client: &w.ClientConfig, rules: w.Rules, failure: &w.FailurePolicy, match: &w.MatchPolicy,
			namespaces: &w.NamespaceSelector, objects: &w.ObjectSelector, sideEffects: w.SideEffects,
			timeout:        &w.TimeoutSeconds,
			reviewVersions: w.AdmissionReviewVersions, matchConditions: w.MatchConditions,
		}
	}
	return out
}

func defaultAll(hooks []hook) {
	for _, h := range hooks {
		fieldrule.Default(h.failure, admissionregistrationv1.Fail)
		fieldrule.Default(h.match, admissionregistrationv1.Equivalent)
		fieldrule.Default(h.namespaces, metav1.LabelSelector{})
		fieldrule.Default(h.objects, metav1.LabelSelector{})
		fieldrule.Default(h.timeout, int32(10))
		if h.reinvocation != nil {
			fieldrule.Default(h.reinvocation, admissionregistrationv1.NeverReinvocationPolicy)
		}
		if h.client.Service != nil {
			fieldrule.Default(&h.client.Service.Port, int32(443))
		}
		for i := range h.rules {
			fieldrule.Default(&h.rules[i].Scope, admissionregistrationv1.AllScopes)
		}
	}
}
