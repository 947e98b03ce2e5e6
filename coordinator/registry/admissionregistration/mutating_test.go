package admissionregistration

import (
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// The messages are v1.36's.
func TestValidateMutatingPolicy(t *testing.T) {
	apply := func(expression string) []admissionregistrationv1.Mutation {
		return []admissionregistrationv1.Mutation{
			{PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: expression}}}
	}
	type T = admissionregistrationv1.MutatingAdmissionPolicy
	for name, c := range map[string]struct {
		change func(*T)
		want   string
	}{
		"good": {func(*T) {}, ""},
		"json_patch": {func(p *T) {
			p.Spec.Mutations = []admissionregistrationv1.Mutation{
				{PatchType: admissionregistrationv1.PatchTypeJSONPatch, JSONPatch: &admissionregistrationv1.JSONPatch{
					Expression: `[JSONPatch{op: "add", path: "/metadata/labels/a", value: "b"}]`,
				}}}
		}, ""},
		"variable": {func(p *T) {
			p.Spec.Variables = []admissionregistrationv1.Variable{{Name: "n", Expression: "2 + 3"}}
			p.Spec.Mutations = apply("Object{spec: Object.spec{replicas: variables.n}}")
		}, ""},
		"none":     {func(p *T) { p.Spec.Mutations = nil }, "spec.mutations: Required value: mutations must contain at least one item"},
		"syntax":   {func(p *T) { p.Spec.Mutations = apply("Object{") }, "spec.mutations[0].applyConfiguration.expression: Invalid value"},
		"empty":    {func(p *T) { p.Spec.Mutations = apply(" ") }, "spec.mutations[0].applyConfiguration.expression: Required value"},
		"odd_type": {func(p *T) { p.Spec.Mutations[0].PatchType = "x" }, `supported values: "ApplyConfiguration", "JSONPatch"`},
		"both":     {func(p *T) { p.Spec.Mutations[0].JSONPatch = &admissionregistrationv1.JSONPatch{} }, "must not be specified when patchType is ApplyConfiguration"},
		"reinvoke": {func(p *T) { p.Spec.ReinvocationPolicy = "" }, "spec.reinvocationPolicy: Required value"},
		"delete": {func(p *T) {
			p.Spec.MatchConstraints.ResourceRules[0].Operations = []admissionregistrationv1.OperationType{"DELETE"}
		}, `supported values: "*", "CONNECT", "CREATE", "UPDATE"`},
		"no_match":   {func(p *T) { p.Spec.MatchConstraints = nil }, "spec.matchConstraints: Required value"},
		"param_kind": {func(p *T) { p.Spec.ParamKind = &admissionregistrationv1.ParamKind{} }, "spec.paramKind.kind: Required value"},
	} {
		p := &T{Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			FailurePolicy:      ptr.To(admissionregistrationv1.Fail),
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations:          apply("Object{spec: Object.spec{replicas: 100}}"),
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{
					{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{"CREATE"},
						Rule: admissionregistrationv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"},
							Resources: []string{"deployments"}},
					}}}},
		}}
		c.change(p)
		errs := validateMutatingPolicy(p, nil)
		if c.want == "" && len(errs) > 0 || c.want != "" &&
			(len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, errs, c.want)
		}
		if errs := validateMutatingPolicy(p, p); len(errs) > 0 {
			t.Errorf("%s: an unchanged policy became invalid: %v", name, errs)
		}
	}
	if errs := validateMutatingBinding(&admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{}); len(errs) != 1 ||
		errs[0].Error() != "spec.policyName: Required value" {
		t.Error(errs)
	}
}

// Causes come in upstream's order: what is wrong with the name, with the selector, with both.
func TestValidateParamRefOrder(t *testing.T) {
	errs := validateParamRef(&admissionregistrationv1.ParamRef{
		Name:                    "a",
		ParameterNotFoundAction: ptr.To(admissionregistrationv1.DenyAction),
		Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "a", Operator: metav1.LabelSelectorOpIn}}},
	}, field.NewPath("p"))
	var got []string
	for _, e := range errs {
		got = append(got, e.Field)
	}
	want := []string{"p.name", "p.selector.matchExpressions[0].values", "p.selector"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
