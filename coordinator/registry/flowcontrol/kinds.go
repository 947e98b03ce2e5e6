// Package flowcontrol declares the API group flowcontrol.apiserver.k8s.io:
// which requests go together (FlowSchema), and how many of them are served at
// once (PriorityLevelConfiguration). KEP-1040.
package flowcontrol

import (
	"context"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

var (
	groupVersion = flowcontrolv1.SchemeGroupVersion
	metadata     = fieldpath.NewSet(fieldpath.MakePathOrDie("metadata"))
)

// keepMeta lets a status write change no metadata but managedFields.
func keepMeta(o, old metav1.Object) {
	metav1.ResetObjectMetaForStatus(o, old)
	o.SetUID(old.GetUID())
	o.SetResourceVersion(old.GetResourceVersion())
	o.SetGenerateName(old.GetGenerateName())
	o.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
}

// Kinds lists the kinds of the group.
func Kinds() []kind.Kind {
	return []kind.Kind{flowSchema(), priorityLevel()}
}

func flowSchema() kind.Kind {
	type T = flowcontrolv1.FlowSchema
	doc := flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "flowschemas", Singular: "flowschema", ClusterScoped: true,
			List: &flowcontrolv1.FlowSchemaList{},
		},
		Default:        defaultSchema,
		Create:         func(_ context.Context, s *T) { s.Status = flowcontrolv1.FlowSchemaStatus{} },
		Validate:       func(_ context.Context, s *T) field.ErrorList { return validateSchema(s) },
		ValidateUpdate: func(_ context.Context, s, _ *T) field.ErrorList { return validateSchema(s) },
		Spec:           func(s *T) any { return &s.Spec },
		Status: &kind.StatusOf[T]{
			Copy:        func(to, from *T) { to.Status = from.Status },
			Validate:    func(_ context.Context, s, _ *T) field.ErrorList { return validateConditions(schemaConditions(s)) },
			Meta:        keepMeta,
			ResetFields: metadata,
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("PriorityLevel", "string", flowcontrolv1.PriorityLevelConfigurationReference{}.SwaggerDoc()["name"]),
			kind.Column("MatchingPrecedence", "string", doc["matchingPrecedence"]),
			kind.Column("DistinguisherMethod", "string", doc["distinguisherMethod"]),
			kind.AgeColumn(),
			kind.Column("MissingPL", "string", "references a broken or non-existent PriorityLevelConfiguration"),
		},
		Row: func(s *T) []any {
			method, missing := "<none>", "?"
			if m := s.Spec.DistinguisherMethod; m != nil {
				method = string(m.Type)
			}
			for _, c := range s.Status.Conditions {
				if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
					missing = string(c.Status)
				}
			}
			return []any{s.Name, s.Spec.PriorityLevelConfiguration.Name, int64(s.Spec.MatchingPrecedence), method,
				kind.Age(s.CreationTimestamp), missing}
		},
	}.Kind()
}

func priorityLevel() kind.Kind {
	type T = flowcontrolv1.PriorityLevelConfiguration
	queuing := flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: groupVersion,
			Resource:     "prioritylevelconfigurations", Singular: "prioritylevelconfiguration", ClusterScoped: true,
			List: &flowcontrolv1.PriorityLevelConfigurationList{},
		},
		Default:        defaultLevel,
		Create:         func(_ context.Context, l *T) { l.Status = flowcontrolv1.PriorityLevelConfigurationStatus{} },
		Validate:       func(_ context.Context, l *T) field.ErrorList { return validateLevel(l) },
		ValidateUpdate: func(_ context.Context, l, _ *T) field.ErrorList { return validateLevel(l) },
		Spec:           func(l *T) any { return &l.Spec },
		Status: &kind.StatusOf[T]{
			Copy:        func(to, from *T) { to.Status = from.Status },
			Validate:    func(_ context.Context, l, _ *T) field.ErrorList { return validateConditions(levelConditions(l)) },
			Meta:        keepMeta,
			ResetFields: metadata,
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Type", "string", flowcontrolv1.PriorityLevelConfigurationSpec{}.SwaggerDoc()["type"]),
			kind.Column("NominalConcurrencyShares",
				"string", flowcontrolv1.LimitedPriorityLevelConfiguration{}.SwaggerDoc()["nominalConcurrencyShares"]),
			kind.Column("Queues", "string", queuing["queues"]),
			kind.Column("HandSize", "string", queuing["handSize"]),
			kind.Column("QueueLengthLimit", "string", queuing["queueLengthLimit"]),
			kind.AgeColumn(),
		},
		Row: levelRow,
	}.Kind()
}

func levelRow(l *flowcontrolv1.PriorityLevelConfiguration) []any {
	shares, queues, hand, length := any("<none>"), any("<none>"), any("<none>"), any("<none>")
	if limited := l.Spec.Limited; limited != nil {
		if limited.NominalConcurrencyShares != nil {
			shares = int64(*limited.NominalConcurrencyShares)
		}
		if q := limited.LimitResponse.Queuing; q != nil {
			queues, hand, length = int64(q.Queues), int64(q.HandSize), int64(q.QueueLengthLimit)
		}
	}
	return []any{l.Name, string(l.Spec.Type), shares, queues, hand, length, kind.Age(l.CreationTimestamp)}
}

func defaultSchema(s *flowcontrolv1.FlowSchema) {
	fieldrule.DefaultEmpty(&s.Spec.MatchingPrecedence, 1000)
}

func defaultLevel(l *flowcontrolv1.PriorityLevelConfiguration) {
	if e := l.Spec.Exempt; e != nil {
		fieldrule.Default(&e.NominalConcurrencyShares, 0)
		fieldrule.Default(&e.LendablePercent, 0)
	}
	limited := l.Spec.Limited
	if limited == nil {
		return
	}
	fieldrule.Default(&limited.NominalConcurrencyShares, 30)
	fieldrule.Default(&limited.LendablePercent, 0)
	if q := limited.LimitResponse.Queuing; q != nil {
		fieldrule.DefaultEmpty(&q.HandSize, 8)
		fieldrule.DefaultEmpty(&q.Queues, 64)
		fieldrule.DefaultEmpty(&q.QueueLengthLimit, 50)
	}
}
