package admissionregistration

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/util/jsonpath"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

const (
	maxAuditAnnotations = 20
	// maxAuditValueExpression is half of what the value itself may have.
	maxAuditValueExpression = 5 * 1024
)

var failureReasons = []metav1.StatusReason{
	metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge,
}

// policyCheck validates one policy; its compiler knows the policy's variables
// as they are seen.
type policyCheck struct {
	name     string
	compiler cel.Compiler
	params   bool
	// stored are the expressions that the old version had: what a later version
	// of the environment forbids may stay there.
	stored map[string]bool
	errs   field.ErrorList
}

func validatePolicy(p, old *admissionregistrationv1.ValidatingAdmissionPolicy) field.ErrorList {
	spec, at := &p.Spec, field.NewPath("spec")
	c := policyCheck{name: p.Name, params: spec.ParamKind != nil, stored: map[string]bool{}}
	if old != nil {
		if equality.Semantic.DeepEqual(spec, &old.Spec) {
			return nil
		}
		c.storedOf(&old.Spec)
	}
	c.add(oneOf(spec.FailurePolicy,
		[]admissionregistrationv1.FailurePolicyType{admissionregistrationv1.Fail, admissionregistrationv1.Ignore},
		at.Child("failurePolicy"))...)
	if spec.ParamKind != nil {
		c.add(validateParamKind(spec.ParamKind, at.Child("paramKind"))...)
	}
	c.constraints(spec.MatchConstraints, at.Child("matchConstraints"))
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
	if len(spec.Validations) == 0 && len(spec.AuditAnnotations) == 0 {
		const msg = "validations or auditAnnotations must contain at least one item"
		c.add(field.Required(at.Child("validations"), msg), field.Required(at.Child("auditAnnotations"), msg))
	}
	for i := range spec.Validations {
		c.validation(&spec.Validations[i], at.Child("validations").Index(i))
	}
	c.auditAnnotations(spec.AuditAnnotations, at.Child("auditAnnotations"))
	return c.errs
}

func (c *policyCheck) add(errs ...*field.Error) { c.errs = append(c.errs, errs...) }

func (c *policyCheck) storedOf(spec *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
	for _, v := range spec.Validations {
		c.stored[v.Expression], c.stored[v.MessageExpression] = true, true
	}
	for _, a := range spec.AuditAnnotations {
		c.stored[a.ValueExpression] = true
	}
	for _, v := range spec.Variables {
		c.stored[v.Expression] = true
	}
}

func (c *policyCheck) newCompiler(withVariables bool) error {
	if !withVariables {
		c.compiler = compiler()
		return nil
	}
	composed, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	c.compiler = composed
	return err
}

func (c *policyCheck) environment(expression string) environment.Type {
	if c.stored[expression] {
		return environment.StoredExpressions
	}
	return environment.NewExpressions
}

// compile reports what CEL says about an expression.
func (c *policyCheck) compile(e cel.ExpressionAccessor, hasAuthorizer bool, at *field.Path) {
	declared := cel.OptionalVariableDeclarations{HasParams: c.params, HasAuthorizer: hasAuthorizer}
	c.report(c.compiler.CompileCELExpression(e, declared, c.environment(e.GetExpression())).Error, e.GetExpression(), at)
}

func (c *policyCheck) report(err *apiservercel.Error, expression string, at *field.Path) {
	switch {
	case err == nil:
	case err.Type == apiservercel.ErrorTypeRequired:
		c.add(field.Required(at, err.Detail))
	case err.Type == apiservercel.ErrorTypeInvalid:
		c.add(field.Invalid(at, expression, err.Detail))
	default:
		c.add(field.InternalError(at, err))
	}
}

func (c *policyCheck) constraints(m *admissionregistrationv1.MatchResources, at *field.Path) {
	if m == nil {
		c.add(field.Required(at, ""))
		return
	}
	c.add(validateMatch(m, at)...)
	if len(m.ResourceRules) == 0 {
		c.add(field.Required(at.Child("resourceRules"), ""))
	}
}

func (c *policyCheck) variable(v *admissionregistrationv1.Variable, at *field.Path) {
	switch {
	case strings.TrimSpace(v.Name) == "":
		c.add(field.Required(at.Child("name"), "name is not specified"))
	case !isIdentifier(v.Name):
		c.add(field.Invalid(at.Child("name"), v.Name, "must be a valid CEL identifier"))
	}
	if strings.TrimSpace(v.Expression) == "" {
		c.add(field.Required(at.Child("expression"), "expression is not specified"))
		return
	}
	composed, ok := c.compiler.(*cel.CompositedCompiler)
	if !ok {
		return
	}
	declared := cel.OptionalVariableDeclarations{HasParams: c.params, HasAuthorizer: true}
	result := composed.CompileAndStoreVariable(&validatingpolicy.Variable{Name: v.Name, Expression: v.Expression},
		declared, c.environment(v.Expression))
	c.report(result.Error, v.Expression, at.Child("expression"))
}

// isIdentifier: a CEL name that is none of its reserved words.
func isIdentifier(name string) bool {
	for i, r := range name {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return !reserved[name]
}

var reserved = func() map[string]bool {
	words := "true false null in as break const continue else for function if import let loop package namespace return var void while"
	out := map[string]bool{}
	for _, w := range strings.Fields(words) {
		out[w] = true
	}
	return out
}()

func (c *policyCheck) validation(v *admissionregistrationv1.Validation, at *field.Path) {
	if strings.TrimSpace(v.Expression) == "" {
		c.add(field.Required(at.Child("expression"), "expression is not specified"))
	} else {
		c.compile(&validatingpolicy.ValidationCondition{Expression: v.Expression}, true, at.Child("expression"))
	}
	if v.MessageExpression != "" {
		if strings.TrimSpace(v.MessageExpression) == "" {
			c.add(field.Invalid(at.Child("messageExpression"), v.MessageExpression, "must be non-empty if specified"))
		} else {
			c.compile(&validatingpolicy.MessageExpressionCondition{MessageExpression: v.MessageExpression}, false,
				at.Child("messageExpression"))
		}
	}
	message := strings.TrimSpace(v.Message)
	switch {
	case v.Message != "" && message == "":
		c.add(field.Invalid(at.Child("message"), v.Message, "must be non-empty if specified"))
	case strings.ContainsAny(message, "\r\n"):
		c.add(field.Invalid(at.Child("message"), v.Message, "must not contain line breaks"))
	}
	c.add(oneOf(v.Reason, failureReasons, at.Child("reason"))...)
}

func (c *policyCheck) auditAnnotations(list []admissionregistrationv1.AuditAnnotation, at *field.Path) {
	if len(list) > maxAuditAnnotations {
		c.add(field.Invalid(at, list, fmt.Sprintf("must not have more than %d auditAnnotations", maxAuditAnnotations)))
	}
	seen := map[string]bool{}
	for i := range list {
		a, at := &list[i], at.Index(i)
		if c.name == "" {
			c.add(field.Invalid(at.Child("key"), a.Key, "requires metadata.name be non-empty"))
		} else {
			for _, msg := range validation.IsQualifiedName(c.name + "/" + a.Key) {
				c.add(field.Invalid(at.Child("key"), c.name+"/"+a.Key, msg))
			}
		}
		switch value := strings.TrimSpace(a.ValueExpression); {
		case value == "":
			c.add(field.Required(at.Child("valueExpression"), "valueExpression is not specified"))
		case len(value) > maxAuditValueExpression:
			c.add(field.Required(at.Child("valueExpression"),
				fmt.Sprintf("must not exceed %d bytes in length", maxAuditValueExpression)))
		default:
			c.compile(&validatingpolicy.AuditAnnotationCondition{ValueExpression: a.ValueExpression}, true, at.Child("valueExpression"))
		}
		if seen[a.Key] {
			c.add(field.Duplicate(at.Child("key"), a.Key))
		}
		seen[a.Key] = true
	}
}

func validateParamKind(k *admissionregistrationv1.ParamKind, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	gv, err := schema.ParseGroupVersion(k.APIVersion)
	switch {
	case k.APIVersion == "":
		errs = append(errs, field.Required(at.Child("apiVersion"), ""))
	case err != nil:
		errs = append(errs, field.Invalid(at.Child("apiVersion"), k.APIVersion, err.Error()))
	default:
		if gv.Group != "" {
			if msgs := validation.IsDNS1123Subdomain(gv.Group); len(msgs) > 0 {
				errs = append(errs, field.Invalid(at.Child("apiVersion"), gv.Group, strings.Join(msgs, ",")))
			}
		}
		if msgs := validation.IsDNS1035Label(gv.Version); len(msgs) > 0 {
			errs = append(errs, field.Invalid(at.Child("apiVersion"), gv.Version, strings.Join(msgs, ",")))
		}
	}
	if k.Kind == "" {
		return append(errs, field.Required(at.Child("kind"), ""))
	}
	if msgs := validation.IsDNS1035Label(strings.ToLower(k.Kind)); len(msgs) > 0 {
		errs = append(errs,
			field.Invalid(at.Child("kind"), k.Kind,
				"may have mixed case, but should otherwise match: "+strings.Join(msgs, ",")))
	}
	return errs
}

func validateMatch(m *admissionregistrationv1.MatchResources, at *field.Path) field.ErrorList {
	errs := oneOf(m.MatchPolicy,
		[]admissionregistrationv1.MatchPolicyType{admissionregistrationv1.Equivalent, admissionregistrationv1.Exact},
		at.Child("matchPolicy"))
	if m.NamespaceSelector != nil {
		errs = append(errs,
			metavalidation.ValidateLabelSelector(m.NamespaceSelector, metavalidation.LabelSelectorValidationOptions{},
				at.Child("namespaceSelector"))...)
	}
	if m.ObjectSelector != nil {
		errs = append(errs,
			metavalidation.ValidateLabelSelector(m.ObjectSelector, metavalidation.LabelSelectorValidationOptions{},
				at.Child("objectSelector"))...)
	}
	for i := range m.ResourceRules {
		errs = append(errs, validateNamedRule(&m.ResourceRules[i], at.Child("resourceRules").Index(i))...)
	}
	for i := range m.ExcludeResourceRules {
		errs = append(errs, validateNamedRule(&m.ExcludeResourceRules[i], at.Child("excludeResourceRules").Index(i))...)
	}
	return errs
}

func validateNamedRule(r *admissionregistrationv1.NamedRuleWithOperations, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, name := range r.ResourceNames {
		errs = append(errs,
			fieldrule.Invalid(at.Child("resourceNames").Index(i), name, path.IsValidPathSegmentName(name))...)
		if slices.Contains(r.ResourceNames[:i], name) {
			errs = append(errs, field.Duplicate(at.Child("resourceNames").Index(i), name))
		}
	}
	return append(errs, validateRule(&r.RuleWithOperations, at)...)
}

func validatePolicyBinding(spec *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) field.ErrorList {
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
	return append(errs, validateActions(spec.ValidationActions, at.Child("validationActions"))...)
}

func validateParamRef(r *admissionregistrationv1.ParamRef, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.Name != "" {
		errs = append(errs, fieldrule.Invalid(at.Child("name"), r.Name, path.IsValidPathSegmentName(r.Name))...)
	}
	const msg = "name and selector are mutually exclusive"
	both := r.Name != "" && r.Selector != nil
	if both {
		errs = append(errs, field.Forbidden(at.Child("name"), msg))
	}
	if r.Selector != nil {
		errs = append(errs,
			metavalidation.ValidateLabelSelector(r.Selector, metavalidation.LabelSelectorValidationOptions{},
				at.Child("selector"))...)
	}
	if both {
		errs = append(errs, field.Forbidden(at.Child("selector"), msg))
	}
	if r.Name == "" && r.Selector == nil {
		errs = append(errs, field.Required(at, "one of name or selector must be specified"))
	}
	if r.ParameterNotFoundAction == nil || *r.ParameterNotFoundAction == "" {
		return append(errs, field.Required(at.Child("parameterNotFoundAction"), ""))
	}
	actions := []admissionregistrationv1.ParameterNotFoundActionType{admissionregistrationv1.DenyAction,
		admissionregistrationv1.AllowAction}
	return append(errs, oneOf(r.ParameterNotFoundAction, actions, at.Child("parameterNotFoundAction"))...)
}

func validateActions(list []admissionregistrationv1.ValidationAction, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	known := []admissionregistrationv1.ValidationAction{admissionregistrationv1.Audit, admissionregistrationv1.Deny,
		admissionregistrationv1.Warn}
	for i := range list {
		errs = append(errs, oneOf(&list[i], known, at.Index(i))...)
		if slices.Contains(list[:i], list[i]) {
			errs = append(errs, field.Duplicate(at.Index(i), list[i]))
		}
	}
	if slices.Contains(list, admissionregistrationv1.Deny) && slices.Contains(list, admissionregistrationv1.Warn) {
		errs = append(errs, field.Invalid(at, list, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"))
	}
	if len(list) == 0 {
		errs = append(errs, field.Required(at, "at least one validation action is required"))
	}
	return errs
}

func validatePolicyStatus(s *admissionregistrationv1.ValidatingAdmissionPolicyStatus) (errs field.ErrorList) {
	p := field.NewPath("status")
	if s.TypeChecking != nil {
		for i, w := range s.TypeChecking.ExpressionWarnings {
			at := p.Child("typeChecking", "expressionWarnings").Index(i)
			if w.Warning == "" {
				errs = append(errs, field.Required(at.Child("warning"), ""))
			}
			errs = append(errs, validateFieldRef(strings.TrimSpace(w.FieldRef), at.Child("fieldRef"))...)
		}
	}
	return append(errs, metavalidation.ValidateConditions(s.Conditions, p.Child("conditions"))...)
}

// validateFieldRef wants a path as kubectl's jsonpath has them.
func validateFieldRef(ref string, p *field.Path) field.ErrorList {
	if ref == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	if err := jsonpath.New("spec").Parse("{" + ref + "}"); err != nil {
		return field.ErrorList{field.Invalid(p, ref, fmt.Sprintf("invalid JSONPath: %v", err))}
	}
	return nil
}
