package core

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// eventTTL is how long an event is kept, in seconds.
const eventTTL = 3600

func event() kind.Kind {
	doc := corev1.Event{}.SwaggerDoc()
	return kind.Of[corev1.Event]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "events", Singular: "event", ShortNames: []string{"ev"},
			List: &corev1.EventList{}, AlsoServed: []schema.GroupVersion{eventsv1.SchemeGroupVersion},
			// Names of events are made of other names; only path segments matter.
			NameRule: func(string, bool) []string { return nil },
		},
		AnyFinalizer:   true,
		OwnMeta:        true,
		Validate:       validateEvent,
		ValidateUpdate: validateEventUpdate,
		TTL:            func(*corev1.Event) uint64 { return eventTTL },
		Fields: func(e *corev1.Event) fields.Set {
			source, reporting := e.Source.Component, e.ReportingController
			if source == "" {
				source = reporting
			}
			o := &e.InvolvedObject
			return fields.Set{
				"involvedObject.kind": o.Kind, "involvedObject.namespace": o.Namespace, "involvedObject.name": o.Name,
				"involvedObject.uid": string(o.UID), "involvedObject.apiVersion": o.APIVersion,
				"involvedObject.resourceVersion": o.ResourceVersion, "involvedObject.fieldPath": o.FieldPath,
				"reason": e.Reason, "reportingComponent": reporting, "source": source, "type": e.Type,
			}
		},
		Columns: []metav1.TableColumnDefinition{
			kind.Column("Last Seen", "string", doc["lastTimestamp"]),
			kind.Column("Type", "string", doc["type"]),
			kind.Column("Reason", "string", doc["reason"]),
			kind.Column("Object", "string", doc["involvedObject"]),
			kind.Wide("Subobject", "string", corev1.ObjectReference{}.SwaggerDoc()["fieldPath"]),
			kind.Wide("Source", "string", doc["source"]),
			kind.Column("Message", "string", doc["message"]),
			kind.Wide("First Seen", "string", doc["firstTimestamp"]),
			kind.Wide("Count", "string", doc["count"]),
			{Name: "Name", Type: "string", Format: "name", Priority: 1, Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]},
		},
		Row:                 eventRow,
		AllowCreateOnUpdate: true,
		GCPolicy:            rest.Unsupported, // nothing depends on an event
	}.Kind()
}

func eventRow(e *corev1.Event) []any {
	first := kind.Age(e.FirstTimestamp)
	if e.FirstTimestamp.IsZero() {
		first = kind.Age(metav1.Time{Time: e.EventTime.Time})
	}
	last := kind.Age(e.LastTimestamp)
	if e.LastTimestamp.IsZero() {
		last = first
	}
	count := e.Count
	if e.Series != nil {
		last, count = kind.Age(metav1.Time{Time: e.Series.LastObservedTime.Time}), e.Series.Count
	} else if count == 0 {
		count = 1 // an event of the newer API that happened once
	}
	target := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		target += "/" + e.InvolvedObject.Name
	}
	return []any{last, e.Type, e.Reason, target, e.InvolvedObject.FieldPath, eventSource(e),
		strings.TrimSpace(e.Message), first, int64(count), e.Name}
}

func eventSource(e *corev1.Event) string {
	component, instance := e.Source.Component, e.Source.Host
	if component == "" {
		component = e.ReportingController
	}
	if instance == "" {
		instance = e.ReportingInstance
	}
	if instance == "" {
		return component
	}
	return component + ", " + instance
}

// viaEvents tells whether a request came by events.k8s.io, which is stricter.
func viaEvents(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	return ok && info.APIGroup == eventsv1.GroupName
}

func validateEvent(ctx context.Context, e *corev1.Event) field.ErrorList {
	strict := viaEvents(ctx)
	errs := validateEventLoosely(e, strict)
	if !strict {
		return errs
	}
	errs = append(errs, apivalidation.ValidateObjectMetaAccessor(e, true, apivalidation.NameIsDNSSubdomain,
		field.NewPath("metadata"))...)
	errs = append(errs, kind.ValidateFinalizers(e)...)
	errs = append(errs, validateSeries(e)...)
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", e.Type)))
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"firstTimestamp", !e.FirstTimestamp.IsZero()}, {"lastTimestamp", !e.LastTimestamp.IsZero()},
		{"count", e.Count != 0}, {"source", e.Source != corev1.EventSource{}},
	} {
		if f.set {
			errs = append(errs, field.Invalid(field.NewPath(f.name), "", "needs to be unset"))
		}
	}
	return errs
}

func validateEventUpdate(ctx context.Context, e, old *corev1.Event) field.ErrorList {
	strict := viaEvents(ctx)
	errs := validateEventLoosely(e, strict)
	if !strict {
		return errs
	}
	errs = append(errs, apivalidation.ValidateObjectMetaUpdate(&e.ObjectMeta, &old.ObjectMeta,
		field.NewPath("metadata"))...)
	errs = append(errs, kind.ValidateFinalizers(e)...)
	if !equality.Semantic.DeepEqual(e.Series, old.Series) {
		errs = append(errs, validateSeries(e)...)
	}
	for _, f := range []struct {
		name     string
		now, was any
	}{
		{"involvedObject", e.InvolvedObject, old.InvolvedObject}, {"reason", e.Reason, old.Reason},
		{"message", e.Message, old.Message},
		{"source", e.Source, old.Source}, {"firstTimestamp", e.FirstTimestamp, old.FirstTimestamp},
		{"lastTimestamp", e.LastTimestamp, old.LastTimestamp}, {"count", e.Count, old.Count},
		{"reason", e.Reason, old.Reason}, // upstream looks twice
		{"type", e.Type, old.Type},
		{"eventTime", metav1.NewMicroTime(e.EventTime.Truncate(time.Microsecond)),
			metav1.NewMicroTime(old.EventTime.Truncate(time.Microsecond))},
		{"action", e.Action, old.Action}, {"related", e.Related, old.Related},
		{"reportingController", e.ReportingController, old.ReportingController},
		{"reportingInstance", e.ReportingInstance, old.ReportingInstance},
	} {
		errs = append(errs, immutable(f.now, f.was, field.NewPath(f.name))...)
	}
	return errs
}

func validateSeries(e *corev1.Event) (errs field.ErrorList) {
	if e.Series == nil {
		return nil
	}
	if e.Series.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if e.Series.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

// Limits in characters.
const (
	maxEventWord = 128 // reportingInstance, action, reason
	maxEventNote = 1024
)

// validateEventLoosely holds for both APIs.
func validateEventLoosely(e *corev1.Event, strict bool) (errs field.ErrorList) {
	mismatch := field.Invalid(field.NewPath("involvedObject", "namespace"), e.InvolvedObject.Namespace, "does not match event.namespace")
	involved := e.InvolvedObject.Namespace
	switch {
	case !e.EventTime.IsZero():
		if involved == "" && e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem {
			errs = append(errs, mismatch)
		}
		errs = append(errs, validateEventWords(e, strict)...)
	case involved == "" && e.Namespace != "" && e.Namespace != metav1.NamespaceDefault,
		involved != "" && e.Namespace != involved:
		errs = append(errs, mismatch)
	}
	return append(errs,
		fieldrule.Invalid(field.NewPath("namespace"), e.Namespace, validation.IsDNS1123Subdomain(e.Namespace))...)
}

func validateEventWords(e *corev1.Event, strict bool) (errs field.ErrorList) {
	controller := field.NewPath("reportingComponent")
	if strict {
		controller = field.NewPath("reportingController")
	}
	if e.ReportingController == "" {
		errs = append(errs, field.Required(controller, ""))
	}
	errs = append(errs,
		fieldrule.Invalid(controller, e.ReportingController, validation.IsQualifiedName(e.ReportingController))...)
	for _, f := range []struct{ name, value string }{
		{"reportingInstance", e.ReportingInstance}, {"action", e.Action}, {"reason", e.Reason},
	} {
		if f.value == "" {
			errs = append(errs, field.Required(field.NewPath(f.name), ""))
		}
		if len(f.value) > maxEventWord {
			errs = append(errs,
				field.Invalid(field.NewPath(f.name), "", fmt.Sprintf("can have at most %v characters", maxEventWord)))
		}
	}
	if len(e.Message) > maxEventNote {
		errs = append(errs,
			field.Invalid(field.NewPath("message"), "", fmt.Sprintf("can have at most %v characters", maxEventNote)))
	}
	return errs
}
