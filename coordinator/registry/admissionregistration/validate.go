package admissionregistration

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/util/webhook"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

// tolerance lets an update keep what was stored before it was checked.
type tolerance struct {
	sideEffects, reviewVersions, duplicateNames, labelValues, matchConditions bool
}

func toleranceFor(hooks, old []hook) tolerance {
	var t tolerance
	names := map[string]bool{}
	for _, h := range old {
		t.sideEffects = t.sideEffects || h.sideEffects == nil || !slices.Contains(noSideEffects, *h.sideEffects)
		t.reviewVersions = t.reviewVersions || len(h.reviewVersions) > 0 &&
			!slices.ContainsFunc(h.reviewVersions, knownReviewVersion)
		t.duplicateNames = t.duplicateNames || names[h.name]
		names[h.name] = true
		for _, s := range []*metav1.LabelSelector{*h.namespaces, *h.objects} {
			if s != nil &&
				len(metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, nil)) > 0 {
				t.labelValues = true
			}
		}
	}
	t.matchConditions = len(old) > 0 && len(old) == len(hooks)
	for i := range old {
		t.matchConditions = t.matchConditions &&
			equality.Semantic.DeepEqual(hooks[i].matchConditions, old[i].matchConditions)
	}
	return t
}

var (
	reviewVersions = []string{"v1", "v1beta1"}
	noSideEffects  = []admissionregistrationv1.SideEffectClass{admissionregistrationv1.SideEffectClassNone,
		admissionregistrationv1.SideEffectClassNoneOnDryRun}
	allSideEffects = []admissionregistrationv1.SideEffectClass{
		admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.SideEffectClassNoneOnDryRun,
		admissionregistrationv1.SideEffectClassSome, admissionregistrationv1.SideEffectClassUnknown,
	}
	operations = []admissionregistrationv1.OperationType{
		admissionregistrationv1.OperationAll, admissionregistrationv1.Connect, admissionregistrationv1.Create,
		admissionregistrationv1.Delete, admissionregistrationv1.Update,
	}
	scopes = []admissionregistrationv1.ScopeType{admissionregistrationv1.AllScopes,
		admissionregistrationv1.ClusterScope, admissionregistrationv1.NamespacedScope}
)

func knownReviewVersion(v string) bool { return slices.Contains(reviewVersions, v) }

func validateHooks(hooks, old []hook) field.ErrorList {
	var errs field.ErrorList
	tolerate := toleranceFor(hooks, old)
	seen := map[string]bool{}
	for i := range hooks {
		h, at := &hooks[i], field.NewPath("webhooks").Index(i)
		errs = append(errs, validateHook(h, tolerate, at)...)
		errs = append(errs, validateReviewVersions(h.reviewVersions, tolerate, at.Child("admissionReviewVersions"))...)
		if !tolerate.duplicateNames && h.name != "" && seen[h.name] {
			errs = append(errs, field.Duplicate(at.Child("name"), h.name))
		}
		seen[h.name] = true
	}
	return errs
}

func validateHook(h *hook, tolerate tolerance, at *field.Path) field.ErrorList {
	errs := validation.IsFullyQualifiedName(at.Child("name"), h.name)
	for i := range h.rules {
		errs = append(errs, validateRule(&h.rules[i], at.Child("rules").Index(i))...)
	}
	errs = append(errs,
		oneOf(*h.failure,
			[]admissionregistrationv1.FailurePolicyType{admissionregistrationv1.Fail, admissionregistrationv1.Ignore},
			at.Child("failurePolicy"))...)
	errs = append(errs,
		oneOf(*h.match,
			[]admissionregistrationv1.MatchPolicyType{admissionregistrationv1.Equivalent,
				admissionregistrationv1.Exact}, at.Child("matchPolicy"))...)
	allowed := noSideEffects
	if tolerate.sideEffects {
		allowed = allSideEffects
	}
	if h.sideEffects == nil {
		errs = append(errs, field.Required(at.Child("sideEffects"), fmt.Sprintf("must specify one of %v", join(allowed))))
	}
	errs = append(errs, oneOf(h.sideEffects, allowed, at.Child("sideEffects"))...)
	if t := *h.timeout; t != nil && (*t > 30 || *t < 1) {
		errs = append(errs, field.Invalid(at.Child("timeoutSeconds"), *t, "the timeout value must be between 1 and 30 seconds"))
	}
	options := metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: tolerate.labelValues}
	if s := *h.namespaces; s != nil {
		errs = append(errs, metavalidation.ValidateLabelSelector(s, options, at.Child("namespaceSelector"))...)
	}
	if s := *h.objects; s != nil {
		errs = append(errs, metavalidation.ValidateLabelSelector(s, options, at.Child("objectSelector"))...)
	}
	if h.reinvocation != nil {
		errs = append(errs, oneOf(*h.reinvocation, []admissionregistrationv1.ReinvocationPolicyType{
			admissionregistrationv1.IfNeededReinvocationPolicy, admissionregistrationv1.NeverReinvocationPolicy,
		}, at.Child("reinvocationPolicy"))...)
	}
	errs = append(errs, validateClient(h.client, at.Child("clientConfig"))...)
	if !tolerate.matchConditions {
		errs = append(errs, validateMatchConditions(h.matchConditions, false, at.Child("matchConditions"))...)
	}
	return errs
}

func oneOf[T ~string](v *T, allowed []T, at *field.Path) field.ErrorList {
	if v == nil || slices.Contains(allowed, *v) {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, *v, allowed)}
}

func join[T ~string](list []T) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = string(v)
	}
	return strings.Join(words, ", ")
}

func validateClient(c *admissionregistrationv1.WebhookClientConfig, at *field.Path) field.ErrorList {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		return field.ErrorList{field.Required(at, "exactly one of url or service is required")}
	case c.URL != nil:
		return webhook.ValidateWebhookURL(at.Child("url"), *c.URL, true)
	}
	port := int32(443)
	if c.Service.Port != nil {
		port = *c.Service.Port
	}
	return webhook.ValidateWebhookService(at.Child("service"), c.Service.Name, c.Service.Namespace, c.Service.Path, port)
}

func validateReviewVersions(versions []string, tolerate tolerance, at *field.Path) field.ErrorList {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(at, "must specify one of "+strings.Join(reviewVersions, ", "))}
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, v := range versions {
		if seen[v] {
			errs = append(errs, field.Invalid(at.Index(i), v, "duplicate version"))
			continue
		}
		seen[v] = true
		errs = append(errs, fieldrule.Invalid(at.Index(i), v, validation.IsDNS1035Label(v))...)
	}
	if !tolerate.reviewVersions && !slices.ContainsFunc(versions, knownReviewVersion) {
		errs = append(errs, field.Invalid(at, versions, "must include at least one of "+strings.Join(reviewVersions, ", ")))
	}
	return errs
}

func validateRule(r *admissionregistrationv1.RuleWithOperations, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(r.Operations) == 0 {
		errs = append(errs, field.Required(at.Child("operations"), ""))
	}
	if len(r.Operations) > 1 && slices.Contains(r.Operations, admissionregistrationv1.OperationAll) {
		errs = append(errs, field.Invalid(at.Child("operations"), r.Operations, "if '*' is present, must not specify other operations"))
	}
	for i := range r.Operations {
		errs = append(errs, oneOf(&r.Operations[i], operations, at.Child("operations").Index(i))...)
	}
	errs = append(errs,
		validateList(r.APIGroups, at.Child("apiGroups"), "if '*' is present, must not specify other API groups")...)
	errs = append(errs,
		validateList(r.APIVersions, at.Child("apiVersions"),
			"if '*' is present, must not specify other API versions")...)
	for i, v := range r.APIVersions {
		if v == "" {
			errs = append(errs, field.Required(at.Child("apiVersions").Index(i), ""))
		}
	}
	errs = append(errs, validateResources(r.Resources, at.Child("resources"))...)
	return append(errs, oneOf(r.Scope, scopes, at.Child("scope"))...)
}

func validateList(list []string, at *field.Path, alone string) field.ErrorList {
	if len(list) == 0 {
		return field.ErrorList{field.Required(at, "")}
	}
	if len(list) > 1 && slices.Contains(list, "*") {
		return field.ErrorList{field.Invalid(at, list, alone)}
	}
	return nil
}

// validateResources refuses resources that a wildcard before them covers.
func validateResources(list []string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(list) == 0 {
		errs = append(errs, field.Required(at, ""))
	}
	anySub, anyRes := map[string]bool{}, map[string]bool{} // of "x/*" and "*/x"
	plain := false
	for i, v := range list {
		if v == "" {
			errs = append(errs, field.Required(at.Index(i), ""))
			continue
		}
		res, sub, ok := strings.Cut(v, "/")
		if !ok {
			plain = plain || v != "*"
			continue
		}
		if anySub[res] {
			errs = append(errs,
				field.Invalid(at.Index(i), v, fmt.Sprintf("if '%s/*' is present, must not specify %s", res, v)))
		}
		if anyRes[sub] {
			errs = append(errs,
				field.Invalid(at.Index(i), v, fmt.Sprintf("if '*/%s' is present, must not specify %s", sub, v)))
		}
		anySub[res] = anySub[res] || sub == "*"
		anyRes[sub] = anyRes[sub] || res == "*"
	}
	if len(list) > 1 && slices.Contains(list, "*/*") {
		errs = append(errs, field.Invalid(at, list, "if '*/*' is present, must not specify other resources"))
	}
	if plain && slices.Contains(list, "*") {
		errs = append(errs, field.Invalid(at, list, "if '*' is present, must not specify other resources without subresources"))
	}
	return errs
}

// maxMatchConditions is upstream's limit a webhook.
const maxMatchConditions = 64

var compiler = sync.OnceValue(func() cel.Compiler {
	return cel.NewCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
})

func validateMatchConditions(list []admissionregistrationv1.MatchCondition, hasParams bool,
	at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(list) > maxMatchConditions {
		errs = append(errs, field.TooMany(at, len(list), maxMatchConditions))
	}
	seen := map[string]bool{}
	for i, c := range list {
		errs = append(errs, validateMatchCondition(c, hasParams, at.Index(i))...)
		if c.Name != "" && seen[c.Name] {
			errs = append(errs, field.Duplicate(at.Index(i).Child("name"), c.Name))
		}
		seen[c.Name] = true
	}
	return errs
}

func validateMatchCondition(c admissionregistrationv1.MatchCondition, hasParams bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if strings.TrimSpace(c.Expression) == "" {
		errs = append(errs, field.Required(at.Child("expression"), ""))
	} else {
		condition := matchconditions.MatchCondition(c)
		result := compiler().CompileCELExpression(&condition,
			cel.OptionalVariableDeclarations{HasParams: hasParams, HasAuthorizer: true}, environment.NewExpressions)
		if result.Error != nil {
			errs = append(errs, field.Invalid(at.Child("expression"), c.Expression, result.Error.Detail))
		}
	}
	if c.Name == "" {
		return append(errs, field.Required(at.Child("name"), ""))
	}
	errs = append(errs, fieldrule.Invalid(at.Child("name"), c.Name, validation.IsQualifiedName(c.Name))...)
	return errs
}
