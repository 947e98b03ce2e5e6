package flowcontrol

import (
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/utils/ptr"
)

func expect(t *testing.T, name string, errs field.ErrorList, want string) {
	t.Helper()
	if want == "" && len(errs) > 0 || want != "" &&
		(len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), want)) {
		t.Errorf("%s: %v, want %q", name, errs, want)
	}
}

// The library's own objects are valid, and stay as they are after defaulting.
func TestBootstrapIsValid(t *testing.T) {
	for _, list := range [][]*flowcontrolv1.FlowSchema{bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas} {
		for _, s := range list {
			s = s.DeepCopy()
			defaultSchema(s)
			expect(t, s.Name, validateSchema(s), "")
		}
	}
	for _, list := range [][]*flowcontrolv1.PriorityLevelConfiguration{bootstrap.MandatoryPriorityLevelConfigurations,
		bootstrap.SuggestedPriorityLevelConfigurations} {
		for _, l := range list {
			l = l.DeepCopy()
			defaultLevel(l)
			expect(t, l.Name, validateLevel(l), "")
		}
	}
}

// KEP-1040: the messages are v1.36's.
func TestValidateSchema(t *testing.T) {
	type T = flowcontrolv1.FlowSchema
	for name, c := range map[string]struct {
		change func(*T)
		want   string
	}{
		"good":        {func(*T) {}, ""},
		"negative":    {func(s *T) { s.Spec.MatchingPrecedence = -1 }, "must be a positive value"},
		"large":       {func(s *T) { s.Spec.MatchingPrecedence = 10001 }, "must not be greater than 10000"},
		"one":         {func(s *T) { s.Spec.MatchingPrecedence = 1 }, "only the schema named 'exempt' may have matchingPrecedence 1"},
		"method":      {func(s *T) { s.Spec.DistinguisherMethod = &flowcontrolv1.FlowDistinguisherMethod{Type: "x"} }, `supported values: "ByNamespace", "ByUser"`},
		"no_level":    {func(s *T) { s.Spec.PriorityLevelConfiguration.Name = "" }, "must reference a priority level"},
		"no_subjects": {func(s *T) { s.Spec.Rules[0].Subjects = nil }, "subjects must contain at least one value"},
		"no_rules":    {func(s *T) { s.Spec.Rules[0].ResourceRules = nil }, "at least one of resourceRules and nonResourceRules has to be non-empty"},
		"no_user":     {func(s *T) { s.Spec.Rules[0].Subjects[0].User = nil }, "user is required when subject kind is 'User'"},
		"and_group": {func(s *T) { s.Spec.Rules[0].Subjects[0].Group = &flowcontrolv1.GroupSubject{Name: "g"} },
			"group is forbidden when subject kind is not 'Group'"},
		"verb":      {func(s *T) { s.Spec.Rules[0].ResourceRules[0].Verbs = []string{"post"} }, "Unsupported value"},
		"namespace": {func(s *T) { s.Spec.Rules[0].ResourceRules[0].Namespaces = []string{"A"} }, "each member of this list must be '*' or a DNS-1123 label; "},
		"url": {func(s *T) {
			s.Spec.Rules[0].NonResourceRules = []flowcontrolv1.NonResourcePolicyRule{
				{Verbs: []string{"*"}, NonResourceURLs: []string{"/a*"}}}
		}, "wildcard can only do suffix matching"},
		"fixed": {func(s *T) { s.Name = "catch-all" }, "spec of 'catch-all' must equal the fixed value"},
	} {
		s := &T{Spec: flowcontrolv1.FlowSchemaSpec{
			MatchingPrecedence: 5, PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "x"},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{
					{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "anna"}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{
					{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"}}},
			}},
		}}
		c.change(s)
		expect(t, name, validateSchema(s), c.want)
	}
}

func TestValidateLevel(t *testing.T) {
	type T = flowcontrolv1.PriorityLevelConfiguration
	for name, c := range map[string]struct {
		change func(*T)
		want   string
	}{
		"good":    {func(*T) {}, ""},
		"exempt":  {func(l *T) { l.Spec.Type = flowcontrolv1.PriorityLevelEnablementExempt }, "must be 'Exempt' if and only if `name` is 'exempt'"},
		"nothing": {func(l *T) { l.Spec.Limited = nil }, "must not be empty when type is Limited"},
		"shares":  {func(l *T) { l.Spec.Limited.NominalConcurrencyShares = ptr.To[int32](-1) }, "must be a non-negative integer"},
		"lend":    {func(l *T) { l.Spec.Limited.LendablePercent = ptr.To[int32](101) }, "must be between 0 and 100, inclusive"},
		"hand":    {func(l *T) { l.Spec.Limited.LimitResponse.Queuing.HandSize = 65 }, "should not be greater than queues (64)"},
		"entropy": {func(l *T) { l.Spec.Limited.LimitResponse.Queuing.HandSize = 40 }, "required entropy bits of deckSize 64 and handSize 40"},
		"reject":  {func(l *T) { l.Spec.Limited.LimitResponse.Type = flowcontrolv1.LimitResponseTypeReject }, "must be nil if limited.limitResponse.type is not Limited"},
		"fixed":   {func(l *T) { l.Name = "catch-all" }, "spec of 'catch-all' must equal the fixed value"},
	} {
		l := &T{Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{LimitResponse: flowcontrolv1.LimitResponse{
				Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &flowcontrolv1.QueuingConfiguration{},
			}},
		}}
		defaultLevel(l)
		c.change(l)
		expect(t, name, validateLevel(l), c.want)
	}
}
