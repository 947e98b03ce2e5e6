package admissionregistration

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

func policy() kind.Kind {
	type T = admissionregistrationv1.ValidatingAdmissionPolicy
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: admissionregistrationv1.SchemeGroupVersion, Resource: "validatingadmissionpolicies",
			Singular: "validatingadmissionpolicy", Categories: []string{"api-extensions"},
			ClusterScoped: true, List: &admissionregistrationv1.ValidatingAdmissionPolicyList{},
		},
		Default: func(p *T) {
			fieldrule.Default(&p.Spec.FailurePolicy, admissionregistrationv1.Fail)
			defaultMatch(p.Spec.MatchConstraints)
		},
		Create:   func(_ context.Context, p *T) { p.Status = admissionregistrationv1.ValidatingAdmissionPolicyStatus{} },
		Validate: func(_ context.Context, p *T) field.ErrorList { return validatePolicy(p, nil) },
		ValidateUpdate: func(_ context.Context, p, old *T) field.ErrorList {
			return validatePolicy(p, old)
		},
		Spec: func(p *T) any { return &p.Spec },
		Status: &kind.StatusOf[T]{
			Copy:        func(to, from *T) { to.Status = from.Status },
			Meta:        metav1.ResetObjectMetaForStatus,
			Validate:    func(_ context.Context, p, _ *T) field.ErrorList { return validatePolicyStatus(&p.Status) },
			ResetFields: fieldpath.NewSet(fieldpath.MakePathOrDie("metadata")),
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Validations", "integer", "Validations indicates the number of validation rules defined in this configuration"),
			kind.Column("ParamKind", "string", "ParamKind specifies the kind of resources used to parameterize this policy"),
			kind.AgeColumn(),
		},
		Row: func(p *T) []any {
			param := "<unset>"
			if k := p.Spec.ParamKind; k != nil {
				param = k.APIVersion + "/" + k.Kind
			}
			return []any{p.Name, int64(len(p.Spec.Validations)), param, kind.Age(p.CreationTimestamp)}
		},
		Store: guardPolicy(func(o runtime.Object) *admissionregistrationv1.ParamKind {
			return o.(*T).Spec.ParamKind
		}),
		DenyUnconditionalUpdate: true,
		AnyFinalizer:            true,
	}.Kind()
}

func policyBinding() kind.Kind {
	type T = admissionregistrationv1.ValidatingAdmissionPolicyBinding
	validate := func(_ context.Context, b *T) field.ErrorList { return validatePolicyBinding(&b.Spec) }
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: admissionregistrationv1.SchemeGroupVersion, Resource: "validatingadmissionpolicybindings",
			Singular: "validatingadmissionpolicybinding", Categories: []string{"api-extensions"},
			ClusterScoped: true, List: &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{},
		},
		Default:        func(b *T) { defaultMatch(b.Spec.MatchResources) },
		Validate:       validate,
		ValidateUpdate: func(ctx context.Context, b, _ *T) field.ErrorList { return validate(ctx, b) },
		Spec:           func(b *T) any { return &b.Spec },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("PolicyName", "string", "PolicyName indicates the policy definition which the policy binding binded to"),
			kind.Column("ParamRef", "string", "ParamRef indicates the param resource which sets the configuration param"),
			kind.AgeColumn(),
		},
		Row: func(b *T) []any {
			return []any{b.Name, b.Spec.PolicyName, paramName(b.Spec.ParamRef), kind.Age(b.CreationTimestamp)}
		},
		Store:                   guardBinding(validatingReference),
		DenyUnconditionalUpdate: true,
		AnyFinalizer:            true,
	}.Kind()
}

func paramName(ref *admissionregistrationv1.ParamRef) string {
	switch {
	case ref == nil:
		return "<unset>"
	case ref.Name != "" && ref.Namespace != "":
		return ref.Namespace + "/" + ref.Name
	case ref.Name != "":
		return "*/" + ref.Name
	case ref.Selector != nil:
		return fmt.Sprint(ref.Selector)
	}
	return "<unset>"
}

func defaultMatch(m *admissionregistrationv1.MatchResources) {
	if m == nil {
		return
	}
	fieldrule.Default(&m.MatchPolicy, admissionregistrationv1.Equivalent)
	fieldrule.Default(&m.NamespaceSelector, metav1.LabelSelector{})
	fieldrule.Default(&m.ObjectSelector, metav1.LabelSelector{})
	for _, rules := range [][]admissionregistrationv1.NamedRuleWithOperations{m.ResourceRules, m.ExcludeResourceRules} {
		for i := range rules {
			fieldrule.Default(&rules[i].Scope, admissionregistrationv1.AllScopes)
		}
	}
}
