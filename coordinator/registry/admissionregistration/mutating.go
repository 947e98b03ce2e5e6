package admissionregistration

import (
	"context"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

func mutatingPolicy() kind.Kind {
	type T = admissionregistrationv1.MutatingAdmissionPolicy
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: admissionregistrationv1.SchemeGroupVersion, Resource: "mutatingadmissionpolicies",
			Singular: "mutatingadmissionpolicy", Categories: []string{"api-extensions"},
			ClusterScoped: true, List: &admissionregistrationv1.MutatingAdmissionPolicyList{},
		},
		Default: func(p *T) {
			fieldrule.Default(&p.Spec.FailurePolicy, admissionregistrationv1.Fail)
			defaultMatch(p.Spec.MatchConstraints)
		},
		Validate:       func(_ context.Context, p *T) field.ErrorList { return validateMutatingPolicy(p, nil) },
		ValidateUpdate: func(_ context.Context, p, old *T) field.ErrorList { return validateMutatingPolicy(p, old) },
		Spec:           func(p *T) any { return &p.Spec },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Mutations", "integer", "Mutation indicates the number of mutations rules defined in this configuration"),
			kind.Column("ParamKind", "string", "ParamKind specifies the kind of resources used to parameterize this policy"),
			kind.AgeColumn(),
		},
		Row: func(p *T) []any {
			param := "<unset>"
			if k := p.Spec.ParamKind; k != nil {
				param = k.APIVersion + "/" + k.Kind
			}
			return []any{p.Name, int64(len(p.Spec.Mutations)), param, kind.Age(p.CreationTimestamp)}
		},
		Store: guardPolicy(func(o runtime.Object) *admissionregistrationv1.ParamKind {
			return o.(*T).Spec.ParamKind
		}),
		DenyUnconditionalUpdate: true,
		AnyFinalizer:            true,
	}.Kind()
}

func mutatingPolicyBinding() kind.Kind {
	type T = admissionregistrationv1.MutatingAdmissionPolicyBinding
	validate := func(_ context.Context, b *T) field.ErrorList { return validateMutatingBinding(&b.Spec) }
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: admissionregistrationv1.SchemeGroupVersion, Resource: "mutatingadmissionpolicybindings",
			Singular: "mutatingadmissionpolicybinding", Categories: []string{"api-extensions"},
			ClusterScoped: true, List: &admissionregistrationv1.MutatingAdmissionPolicyBindingList{},
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
		Store:                   guardBinding(mutatingReference),
		DenyUnconditionalUpdate: true,
		AnyFinalizer:            true,
	}.Kind()
}

func validateMutatingPolicy(p, old *admissionregistrationv1.MutatingAdmissionPolicy) field.ErrorList {
	spec, at := &p.Spec, field.NewPath("spec")
	c := policyCheck{name: p.Name, params: spec.ParamKind != nil, stored: map[string]bool{}}
	if old != nil {
		if equality.Semantic.DeepEqual(spec, &old.Spec) {
			return nil
		}
		c.storedOfMutating(&old.Spec)
	}
	c.add(oneOf(spec.FailurePolicy,
		[]admissionregistrationv1.FailurePolicyType{admissionregistrationv1.Fail, admissionregistrationv1.Ignore},
		at.Child("failurePolicy"))...)
	if spec.ParamKind != nil {
		c.add(validateParamKind(spec.ParamKind, at.Child("paramKind"))...)
	}
	c.constraints(spec.MatchConstraints, at.Child("matchConstraints"))
	c.add(validateMutable(spec.MatchConstraints, at.Child("matchConstraints"))...)
	if old == nil || !equality.Semantic.DeepEqual(spec.ParamKind, old.Spec.ParamKind) ||
		!equality.Semantic.DeepEqual(spec.MatchConditions, old.Spec.MatchConditions) {
		c.add(validateMatchConditions(spec.MatchConditions, c.params, at.Child("matchConditions"))...)
	}
	if err := c.newCompiler(len(spec.Variables) > 0); err != nil {
		return append(c.errs, field.InternalError(at, err))
	}
	for i := range spec.Variables {
		c.variable(&spec.Variables[i], at.Child("variables").Index(i))
	}
	if len(spec.Mutations) == 0 {
		c.add(field.Required(at.Child("mutations"), "mutations must contain at least one item"))
	}
	for i := range spec.Mutations {
		c.mutation(&spec.Mutations[i], at.Child("mutations").Index(i))
	}
	if spec.ReinvocationPolicy == "" {
		return append(c.errs, field.Required(at.Child("reinvocationPolicy"), ""))
	}
	known := []admissionregistrationv1.ReinvocationPolicyType{admissionregistrationv1.IfNeededReinvocationPolicy,
		admissionregistrationv1.NeverReinvocationPolicy}
	return append(c.errs, oneOf(&spec.ReinvocationPolicy, known, at.Child("reinvocationPolicy"))...)
}

func (c *policyCheck) storedOfMutating(spec *admissionregistrationv1.MutatingAdmissionPolicySpec) {
	for _, m := range spec.Mutations {
		if m.ApplyConfiguration != nil {
			c.stored[m.ApplyConfiguration.Expression] = true
		}
		if m.JSONPatch != nil {
			c.stored[m.JSONPatch.Expression] = true
		}
	}
	for _, v := range spec.Variables {
		c.stored[v.Expression] = true
	}
}

func (c *policyCheck) mutation(m *admissionregistrationv1.Mutation, at *field.Path) {
	const apply, json = admissionregistrationv1.PatchTypeApplyConfiguration, admissionregistrationv1.PatchTypeJSONPatch
	switch m.PatchType {
	case "":
		c.add(field.Required(at.Child("patchType"), ""))
	case json:
		if m.JSONPatch == nil {
			c.add(field.Required(at.Child("jsonPatch"), "must be specified when patchType is JSONPatch"))
		} else {
			c.patch(&patch.JSONPatchCondition{Expression: strings.TrimSpace(m.JSONPatch.Expression)},
				at.Child("jsonPatch", "expression"))
		}
		if m.ApplyConfiguration != nil {
			c.add(field.Invalid(at.Child("applyConfiguration"), "{applyConfiguration}", "must not be specified when patchType is JSONPatch"))
		}
	case apply:
		if m.ApplyConfiguration == nil {
			c.add(field.Required(at.Child("applyConfiguration"), "must be specified when patchType is ApplyConfiguration"))
		} else {
			c.patch(&patch.ApplyConfigurationCondition{Expression: strings.TrimSpace(m.ApplyConfiguration.Expression)},
				at.Child("applyConfiguration", "expression"))
		}
		if m.JSONPatch != nil {
			c.add(field.Invalid(at.Child("jsonPatch"), "{jsonPatch}", "must not be specified when patchType is ApplyConfiguration"))
		}
	default:
		c.add(field.NotSupported(at.Child("patchType"), m.PatchType, []admissionregistrationv1.PatchType{apply, json}))
	}
}

// patch reports what CEL says about an expression that makes a patch.
func (c *policyCheck) patch(e cel.ExpressionAccessor, at *field.Path) {
	expression := e.GetExpression()
	if expression == "" {
		c.add(field.Required(at, ""))
		return
	}
	declared := cel.OptionalVariableDeclarations{HasParams: c.params, HasAuthorizer: true, HasPatchTypes: true}
	c.report(c.compiler.CompileCELExpression(e, declared, c.environment(expression)).Error, expression, at)
}

// validateMutable refuses operations that have no object to change.
func validateMutable(m *admissionregistrationv1.MatchResources, at *field.Path) (errs field.ErrorList) {
	if m == nil {
		return nil
	}
	allowed := []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll,
		admissionregistrationv1.Connect, admissionregistrationv1.Create, admissionregistrationv1.Update}
	for _, r := range m.ResourceRules {
		for _, op := range r.Operations {
			if !slices.Contains(allowed, op) {
				errs = append(errs, field.NotSupported(at.Child("resourceRules", "operations"), op, allowed))
			}
		}
	}
	return errs
}

func validateMutatingBinding(spec *admissionregistrationv1.MutatingAdmissionPolicyBindingSpec) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("spec")
	if spec.PolicyName == "" {
		errs = append(errs, field.Required(at.Child("policyName"), ""))
	} else {
		errs = append(errs,
			fieldrule.Invalid(at.Child("policyName"), spec.PolicyName,
				apivalidation.NameIsDNSSubdomain(spec.PolicyName, false))...)
	}
	if spec.ParamRef != nil {
		errs = append(errs, validateParamRef(spec.ParamRef, at.Child("paramRef"))...)
	}
	if spec.MatchResources != nil {
		errs = append(errs, validateMatch(spec.MatchResources, at.Child("matchResources"))...)
	}
	return append(errs, validateMutable(spec.MatchResources, at.Child("matchResources"))...)
}
