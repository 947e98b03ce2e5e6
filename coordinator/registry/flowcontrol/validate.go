package flowcontrol

import (
	"fmt"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/util/shufflesharding"
)

const (
	maxPrecedence = 10000
	maxQueues     = 10 * 1000 * 1000
	// zeroShares is an annotation that only conversions from v1beta3 may make.
	zeroShares = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares"
	exempt     = flowcontrolv1.PriorityLevelConfigurationNameExempt
)

var (
	methods = []flowcontrolv1.FlowDistinguisherMethodType{flowcontrolv1.FlowDistinguisherMethodByNamespaceType,
		flowcontrolv1.FlowDistinguisherMethodByUserType}
	subjects = []flowcontrolv1.SubjectKind{flowcontrolv1.SubjectKindGroup, flowcontrolv1.SubjectKindServiceAccount,
		flowcontrolv1.SubjectKindUser}
	verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"}
)

func validateSchema(s *flowcontrolv1.FlowSchema) (errs field.ErrorList) {
	spec, p := &s.Spec, field.NewPath("spec")
	switch precedence := p.Child("matchingPrecedence"); {
	case spec.MatchingPrecedence <= 0:
		errs = append(errs, field.Invalid(precedence, spec.MatchingPrecedence, "must be a positive value"))
	case spec.MatchingPrecedence > maxPrecedence:
		errs = append(errs,
			field.Invalid(precedence, spec.MatchingPrecedence, fmt.Sprintf("must not be greater than %v", maxPrecedence)))
	case spec.MatchingPrecedence == 1 && s.Name != exempt:
		errs = append(errs, field.Invalid(precedence, spec.MatchingPrecedence, "only the schema named 'exempt' may have matchingPrecedence 1"))
	}
	if m := spec.DistinguisherMethod; m != nil && !slices.Contains(methods, m.Type) {
		errs = append(errs, field.NotSupported(p.Child("distinguisherMethod", "type"), *m, methods))
	}
	name := spec.PriorityLevelConfiguration.Name
	at := p.Child("priorityLevelConfiguration", "name")
	if name == "" {
		errs = append(errs, field.Required(at, "must reference a priority level"))
	} else {
		errs = append(errs, invalidIf(at, name, apivalidation.NameIsDNSSubdomain(name, false), "")...)
	}
	for i := range spec.Rules {
		errs = append(errs, validateRule(&spec.Rules[i], p.Child("rules").Index(i))...)
	}
	for _, fixed := range bootstrap.MandatoryFlowSchemas {
		if fixed.Name == s.Name && !equality.Semantic.DeepEqual(s.Spec, fixed.Spec) {
			errs = append(errs, field.Invalid(p, s.Spec, fmt.Sprintf("spec of '%s' must equal the fixed value", s.Name)))
		}
	}
	return append(errs, validateConditions(schemaConditions(s))...)
}

func invalidIf(p *field.Path, value any, messages []string, prefix string) (errs field.ErrorList) {
	for _, msg := range messages {
		errs = append(errs, field.Invalid(p, value, prefix+msg))
	}
	return errs
}

func validateRule(r *flowcontrolv1.PolicyRulesWithSubjects, p *field.Path) (errs field.ErrorList) {
	if len(r.Subjects) == 0 {
		errs = append(errs, field.Required(p.Child("subjects"), "subjects must contain at least one value"))
	}
	for i := range r.Subjects {
		errs = append(errs, validateSubject(&r.Subjects[i], p.Child("subjects").Index(i))...)
	}
	if len(r.ResourceRules) == 0 && len(r.NonResourceRules) == 0 {
		errs = append(errs, field.Required(p, "at least one of resourceRules and nonResourceRules has to be non-empty"))
	}
	for i := range r.ResourceRules {
		errs = append(errs, validateResourceRule(&r.ResourceRules[i], p.Child("resourceRules").Index(i))...)
	}
	for i := range r.NonResourceRules {
		errs = append(errs, validateURLRule(&r.NonResourceRules[i], p.Child("nonResourceRules").Index(i))...)
	}
	return errs
}

func validateSubject(s *flowcontrolv1.Subject, p *field.Path) (errs field.ErrorList) {
	if !slices.Contains(subjects, s.Kind) {
		return field.ErrorList{field.NotSupported(p.Child("kind"), s.Kind, subjects)}
	}
	for _, other := range []struct {
		kind  flowcontrolv1.SubjectKind
		field string
		set   bool
	}{
		{flowcontrolv1.SubjectKindServiceAccount, "serviceAccount", s.ServiceAccount != nil},
		{flowcontrolv1.SubjectKindUser, "user", s.User != nil},
		{flowcontrolv1.SubjectKindGroup, "group", s.Group != nil},
	} {
		switch {
		case other.kind == s.Kind && !other.set:
			errs = append(errs,
				field.Required(p.Child(other.field),
					fmt.Sprintf("%s is required when subject kind is '%s'", other.field, other.kind)))
		case other.kind != s.Kind && other.set:
			errs = append(errs,
				field.Forbidden(p.Child(other.field),
					fmt.Sprintf("%s is forbidden when subject kind is not '%s'", other.field, other.kind)))
		}
	}
	switch {
	case s.Kind == flowcontrolv1.SubjectKindUser && s.User != nil && s.User.Name == "":
		errs = append(errs, field.Required(p.Child("user", "name"), ""))
	case s.Kind == flowcontrolv1.SubjectKindGroup && s.Group != nil && s.Group.Name == "":
		errs = append(errs, field.Required(p.Child("group", "name"), ""))
	case s.Kind == flowcontrolv1.SubjectKindServiceAccount && s.ServiceAccount != nil:
		errs = append(errs, validateAccount(s.ServiceAccount, p.Child("serviceAccount"))...)
	}
	return errs
}

func validateAccount(a *flowcontrolv1.ServiceAccountSubject, p *field.Path) (errs field.ErrorList) {
	switch a.Name {
	case "":
		errs = append(errs, field.Required(p.Child("name"), ""))
	case flowcontrolv1.NameAll:
	default:
		errs = append(errs,
			invalidIf(p.Child("name"), a.Name, apivalidation.ValidateServiceAccountName(a.Name, false), "")...)
	}
	if a.Namespace == "" {
		return append(errs, field.Required(p.Child("namespace"), "must specify namespace for service account"))
	}
	return append(errs,
		invalidIf(p.Child("namespace"), a.Namespace, apivalidation.ValidateNamespaceName(a.Namespace, false), "")...)
}

// validateWords checks a list in which "*" stands alone. empty and alone are
// what is said when there is nothing in it, or "*" beside something.
func validateWords(list []string, p *field.Path, empty, alone string) field.ErrorList {
	switch {
	case len(list) == 0:
		return field.ErrorList{field.Required(p, empty)}
	case len(list) > 1 && slices.Contains(list, "*"):
		return field.ErrorList{field.Invalid(p, list, alone)}
	}
	return nil
}

func validateVerbs(list []string, p *field.Path) field.ErrorList {
	errs := validateWords(list, p, "verbs must contain at least one value", "if '*' is present, must not specify other verbs")
	if len(errs) > 0 || slices.Contains(list, "*") {
		return errs
	}
	if slices.ContainsFunc(list, func(v string) bool { return !slices.Contains(verbs, v) }) {
		return field.ErrorList{field.NotSupported(p, list, verbs)}
	}
	return nil
}

func validateURLRule(r *flowcontrolv1.NonResourcePolicyRule, p *field.Path) field.ErrorList {
	errs := validateVerbs(r.Verbs, p.Child("verbs"))
	at := p.Child("nonResourceURLs")
	errs = append(errs,
		validateWords(r.NonResourceURLs, at, "nonResourceURLs must contain at least one value",
			"if '*' is present, must not specify other non-resource URLs")...)
	if slices.Contains(r.NonResourceURLs, "*") {
		return errs
	}
	for i, url := range r.NonResourceURLs {
		if msg := urlMessage(url); msg != "" {
			errs = append(errs, field.Invalid(at.Index(i), url, msg))
		}
	}
	return errs
}

func urlMessage(url string) string {
	stars := strings.Count(url, "*")
	switch {
	case url == "":
		return "must not be empty"
	case !strings.HasPrefix(url, "/"):
		return "must start with slash"
	case strings.Contains(url, " "):
		return "must not contain white-space"
	case strings.Contains(url, "//"):
		return "must not contain double slash"
	case stars > 1 || stars == 1 && !strings.HasSuffix(url, "/*"):
		return "wildcard can only do suffix matching"
	}
	return ""
}

func validateResourceRule(r *flowcontrolv1.ResourcePolicyRule, p *field.Path) field.ErrorList {
	errs := validateVerbs(r.Verbs, p.Child("verbs"))
	errs = append(errs,
		validateWords(r.APIGroups, p.Child("apiGroups"), "resource rules must supply at least one api group",
			"if '*' is present, must not specify other api groups")...)
	errs = append(errs,
		validateWords(r.Resources, p.Child("resources"), "resource rules must supply at least one resource",
			"if '*' is present, must not specify other resources")...)
	if len(r.Namespaces) == 0 && r.ClusterScope {
		return errs
	}
	at := p.Child("namespaces")
	errs = append(errs,
		validateWords(r.Namespaces, at, "resource rules that are not cluster scoped must supply at least one namespace",
			"if '*' is present, must not specify other namespaces")...)
	if slices.Contains(r.Namespaces, "*") {
		return errs
	}
	for i, ns := range r.Namespaces {
		errs = append(errs,
			invalidIf(at.Index(i), ns, apivalidation.ValidateNamespaceName(ns, false),
				"each member of this list must be '*' or a DNS-1123 label; ")...)
	}
	return errs
}

func schemaConditions(s *flowcontrolv1.FlowSchema) (types []string) {
	for _, c := range s.Status.Conditions {
		types = append(types, string(c.Type))
	}
	return types
}

func levelConditions(l *flowcontrolv1.PriorityLevelConfiguration) (types []string) {
	for _, c := range l.Status.Conditions {
		types = append(types, string(c.Type))
	}
	return types
}

func validateConditions(types []string) (errs field.ErrorList) {
	for i, t := range types {
		p := field.NewPath("status", "conditions").Index(i).Child("type")
		if slices.Contains(types[:i], t) {
			errs = append(errs, field.Duplicate(p, t))
		}
		if t == "" {
			errs = append(errs, field.Required(p, ""))
		}
	}
	return errs
}

func validateLevel(l *flowcontrolv1.PriorityLevelConfiguration) (errs field.ErrorList) {
	if _, ok := l.Annotations[zeroShares]; ok {
		errs = append(errs,
			field.Forbidden(field.NewPath("metadata", "annotations"),
				fmt.Sprintf("annotation '%s' is forbidden", zeroShares)))
	}
	spec, p := &l.Spec, field.NewPath("spec")
	if (l.Name == exempt) != (spec.Type == flowcontrolv1.PriorityLevelEnablementExempt) {
		errs = append(errs, field.Invalid(p.Child("type"), spec.Type, "must be 'Exempt' if and only if `name` is 'exempt'"))
	}
	errs = append(errs, validateLevelSpec(spec, p)...)
	for _, fixed := range bootstrap.MandatoryPriorityLevelConfigurations {
		if fixed.Name == l.Name {
			errs = append(errs, validateFixed(spec, fixed, p)...)
		}
	}
	return append(errs, validateConditions(levelConditions(l))...)
}

// validateFixed lets nothing of a mandatory level change but what "exempt" says
// of its shares.
func validateFixed(spec *flowcontrolv1.PriorityLevelConfigurationSpec, fixed *flowcontrolv1.PriorityLevelConfiguration,
	p *field.Path) field.ErrorList {
	have, format := *spec, "spec of '%s' must equal the fixed value"
	if fixed.Name == exempt {
		have.Exempt, format = fixed.Spec.Exempt, "spec of '%s' except the 'spec.exempt' field must equal the fixed value"
	}
	if equality.Semantic.DeepEqual(have, fixed.Spec) {
		return nil
	}
	return field.ErrorList{field.Invalid(p, *spec, fmt.Sprintf(format, fixed.Name))}
}

func validateLevelSpec(spec *flowcontrolv1.PriorityLevelConfigurationSpec, p *field.Path) (errs field.ErrorList) {
	const free, limited = flowcontrolv1.PriorityLevelEnablementExempt, flowcontrolv1.PriorityLevelEnablementLimited
	switch spec.Type {
	case free:
		if spec.Limited != nil {
			errs = append(errs, field.Forbidden(p.Child("limited"), "must be nil if the type is not Limited"))
		}
		if e := spec.Exempt; e != nil {
			errs = append(errs, validateShares(e.NominalConcurrencyShares, p.Child("exempt"))...)
			errs = append(errs, validateLendable(e.LendablePercent, p.Child("exempt"))...)
		}
	case limited:
		if spec.Exempt != nil {
			errs = append(errs, field.Forbidden(p.Child("exempt"), "must be nil if the type is Limited"))
		}
		if spec.Limited == nil {
			return append(errs, field.Required(p.Child("limited"), "must not be empty when type is Limited"))
		}
		errs = append(errs, validateLimited(spec.Limited, p.Child("limited"))...)
	case "":
		errs = append(errs, field.Required(p.Child("type"), ""))
	default:
		errs = append(errs,
			field.NotSupported(p.Child("type"), spec.Type, []flowcontrolv1.PriorityLevelEnablement{free, limited}))
	}
	return errs
}

func validateShares(shares *int32, p *field.Path) (errs field.ErrorList) {
	if shares != nil && *shares < 0 {
		errs = append(errs, field.Invalid(p.Child("nominalConcurrencyShares"), *shares, "must be a non-negative integer"))
	}
	return errs
}

func validateLendable(lendable *int32, p *field.Path) (errs field.ErrorList) {
	if lendable != nil && (*lendable < 0 || *lendable > 100) {
		errs = append(errs, field.Invalid(p.Child("lendablePercent"), *lendable, "must be between 0 and 100, inclusive"))
	}
	return errs
}

func validateLimited(l *flowcontrolv1.LimitedPriorityLevelConfiguration, p *field.Path) field.ErrorList {
	errs := validateShares(l.NominalConcurrencyShares, p)
	errs = append(errs, validateResponse(&l.LimitResponse, p.Child("limitResponse"))...)
	errs = append(errs, validateLendable(l.LendablePercent, p)...)
	if b := l.BorrowingLimitPercent; b != nil && *b < 0 {
		errs = append(errs, field.Invalid(p.Child("borrowingLimitPercent"), *b, "if specified, must be a non-negative integer"))
	}
	return errs
}

func validateResponse(response *flowcontrolv1.LimitResponse, at *field.Path) (errs field.ErrorList) {
	const queue, reject = flowcontrolv1.LimitResponseTypeQueue, flowcontrolv1.LimitResponseTypeReject
	switch response.Type {
	case reject:
		if response.Queuing != nil {
			errs = append(errs, field.Forbidden(at.Child("queuing"), "must be nil if limited.limitResponse.type is not Limited"))
		}
	case queue:
		if response.Queuing == nil {
			return append(errs, field.Required(at.Child("queuing"), "must not be empty if limited.limitResponse.type is Limited"))
		}
		errs = append(errs, validateQueuing(response.Queuing, at.Child("queuing"))...)
	case "":
		errs = append(errs, field.Required(at.Child("type"), ""))
	default:
		errs = append(errs,
			field.NotSupported(at.Child("type"), response.Type, []flowcontrolv1.LimitResponseType{queue, reject}))
	}
	return errs
}

func validateQueuing(q *flowcontrolv1.QueuingConfiguration, p *field.Path) (errs field.ErrorList) {
	if q.QueueLengthLimit <= 0 {
		errs = append(errs, field.Invalid(p.Child("queueLengthLimit"), q.QueueLengthLimit, "must be positive"))
	}
	switch at := p.Child("queues"); {
	case q.Queues <= 0:
		errs = append(errs, field.Invalid(at, q.Queues, "must be positive"))
	case q.Queues > maxQueues:
		errs = append(errs, field.Invalid(at, q.Queues, fmt.Sprintf("must not be greater than %d", maxQueues)))
	}
	at := p.Child("handSize")
	switch {
	case q.HandSize <= 0:
		return append(errs, field.Invalid(at, q.HandSize, "must be positive"))
	case q.HandSize > q.Queues:
		return append(errs, field.Invalid(at, q.HandSize, fmt.Sprintf("should not be greater than queues (%d)", q.Queues)))
	}
	if bits := shufflesharding.RequiredEntropyBits(int(q.Queues), int(q.HandSize)); bits > shufflesharding.MaxHashBits {
		errs = append(errs,
			field.Invalid(at, q.HandSize,
				fmt.Sprintf("required entropy bits of deckSize %d and handSize %d should not be greater than %d",
					q.Queues, q.HandSize, shufflesharding.MaxHashBits)))
	}
	return errs
}
