package autoscaling

import (
	"errors"
	"fmt"
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

const (
	maxPeriod = 1800 // seconds
	maxWindow = 3600 // seconds
)

var (
	selectPolicies = []autoscalingv2.ScalingPolicySelect{autoscalingv2.DisabledPolicySelect,
		autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect}
	policyTypes = []autoscalingv2.HPAScalingPolicyType{autoscalingv2.PercentScalingPolicy,
		autoscalingv2.PodsScalingPolicy}
	sourceTypes = []autoscalingv2.MetricSourceType{
		autoscalingv2.ContainerResourceMetricSourceType, autoscalingv2.ExternalMetricSourceType,
		autoscalingv2.ObjectMetricSourceType,
		autoscalingv2.PodsMetricSourceType, autoscalingv2.ResourceMetricSourceType,
	}
	targetTypes = []autoscalingv2.MetricTargetType{autoscalingv2.UtilizationMetricType, autoscalingv2.ValueMetricType,
		autoscalingv2.AverageValueMetricType}
)

// refRules say which API versions of a reference pass.
type refRules struct{ anything, core bool }

// rules are what old, nil for a create, leaves open to a changed spec.
type rules struct {
	least           int32
	target, objects refRules
}

func newRules(spec, old *autoscalingv2.HorizontalPodAutoscalerSpec) rules {
	r := rules{least: 1, objects: refRules{core: true}, target: refRules{core: spec.ScaleTargetRef.Kind == "ReplicationController"}}
	if old == nil {
		return r
	}
	if old.MinReplicas != nil && *old.MinReplicas == 0 {
		r.least = 0
	}
	if old.ScaleTargetRef.APIVersion == spec.ScaleTargetRef.APIVersion &&
		old.ScaleTargetRef.Kind == spec.ScaleTargetRef.Kind {
		r.target.anything = true
	}
	for i := range old.Metrics {
		if o := old.Metrics[i].Object; o != nil && checkVersion(o.DescribedObject.APIVersion, r.objects) != nil {
			r.objects.anything = true
		}
	}
	return r
}

func validateSpec(spec, old *autoscalingv2.HorizontalPodAutoscalerSpec) (errs field.ErrorList) {
	r, p := newRules(spec, old), field.NewPath("spec")
	least := spec.MinReplicas
	if least != nil && *least < r.least {
		errs = append(errs,
			field.Invalid(p.Child("minReplicas"), *least, fmt.Sprintf("must be greater than or equal to %d", r.least)))
	}
	switch at := p.Child("maxReplicas"); {
	case spec.MaxReplicas == 0:
		errs = append(errs, field.Required(at, "must be set and greater than 0"))
	case spec.MaxReplicas < 0:
		errs = append(errs, field.Invalid(at, spec.MaxReplicas, "must be greater than or equal to 1"))
	}
	if least != nil && spec.MaxReplicas < *least {
		errs = append(errs, field.Invalid(p.Child("maxReplicas"), spec.MaxReplicas, "must be greater than or equal to `minReplicas`"))
	}
	errs = append(errs, validateReference(&spec.ScaleTargetRef, r.target, p.Child("scaleTargetRef"))...)
	outside := false
	for i := range spec.Metrics {
		m := &spec.Metrics[i]
		errs = append(errs, validateMetric(m, r, p.Child("metrics").Index(i))...)
		outside = outside || m.Type == autoscalingv2.ObjectMetricSourceType ||
			m.Type == autoscalingv2.ExternalMetricSourceType
	}
	if least != nil && *least == 0 && !outside {
		errs = append(errs, field.Forbidden(p.Child("metrics"), "must specify at least one Object or External metric to support scaling to zero replicas"))
	}
	if b := spec.Behavior; b != nil {
		errs = append(errs, validateScaling(b.ScaleUp, p.Child("behavior", "scaleUp"))...)
		errs = append(errs, validateScaling(b.ScaleDown, p.Child("behavior", "scaleDown"))...)
	}
	return errs
}

func validateStatus(s *autoscalingv2.HorizontalPodAutoscalerStatus) field.ErrorList {
	errs := apivalidation.ValidateNonnegativeField(int64(s.CurrentReplicas), field.NewPath("status", "currentReplicas"))
	return append(errs,
		apivalidation.ValidateNonnegativeField(int64(s.DesiredReplicas), field.NewPath("status", "desiredReplicas"))...)
}

func validateReference(r *autoscalingv2.CrossVersionObjectReference, rules refRules, p *field.Path) field.ErrorList {
	errs := validateSegment(r.Kind, "", p.Child("kind"))
	errs = append(errs, validateSegment(r.Name, "", p.Child("name"))...)
	if err := checkVersion(r.APIVersion, rules); err != nil {
		errs = append(errs, field.Invalid(p.Child("apiVersion"), r.APIVersion, err.Error()))
	}
	return errs
}

func validateSegment(s, missing string, p *field.Path) (errs field.ErrorList) {
	if s == "" {
		return field.ErrorList{field.Required(p, missing)}
	}
	errs = append(errs, fieldrule.Invalid(p, s, path.IsValidPathSegmentName(s))...)
	return errs
}

func checkVersion(version string, rules refRules) error {
	if rules.anything {
		return nil
	}
	gv, err := schema.ParseGroupVersion(version)
	if err == nil && gv.Group == "" && !rules.core {
		err = errors.New("apiVersion must specify API group")
	}
	return err
}

func validateScaling(r *autoscalingv2.HPAScalingRules, p *field.Path) (errs field.ErrorList) {
	if r == nil {
		return nil
	}
	if w := r.StabilizationWindowSeconds; w != nil && *w < 0 {
		errs = append(errs, field.Invalid(p.Child("stabilizationWindowSeconds"), *w, "must be greater than or equal to zero"))
	} else if w != nil && *w > maxWindow {
		errs = append(errs,
			field.Invalid(p.Child("stabilizationWindowSeconds"), *w,
				fmt.Sprintf("must be less than or equal to %v", maxWindow)))
	}
	if s := r.SelectPolicy; s != nil && !slices.Contains(selectPolicies, *s) {
		errs = append(errs, field.NotSupported(p.Child("selectPolicy"), *s, selectPolicies))
	}
	at := p.Child("policies")
	if len(r.Policies) == 0 {
		errs = append(errs, field.Required(at, "must specify at least one Policy"))
	}
	for i, policy := range r.Policies {
		errs = append(errs, validatePolicy(policy, at.Index(i))...)
	}
	if r.Tolerance != nil && r.Tolerance.Sign() < 0 {
		errs = append(errs, field.Invalid(p.Child("tolerance"), r.Tolerance.String(), apivalidation.IsNegativeErrorMsg))
	}
	return errs
}

func validatePolicy(policy autoscalingv2.HPAScalingPolicy, p *field.Path) (errs field.ErrorList) {
	if !slices.Contains(policyTypes, policy.Type) {
		errs = append(errs, field.NotSupported(p.Child("type"), policy.Type, policyTypes))
	}
	if policy.Value <= 0 {
		errs = append(errs, field.Invalid(p.Child("value"), policy.Value, "must be greater than zero"))
	}
	switch {
	case policy.PeriodSeconds <= 0:
		errs = append(errs, field.Invalid(p.Child("periodSeconds"), policy.PeriodSeconds, "must be greater than zero"))
	case policy.PeriodSeconds > maxPeriod:
		errs = append(errs,
			field.Invalid(p.Child("periodSeconds"), policy.PeriodSeconds,
				fmt.Sprintf("must be less than or equal to %v", maxPeriod)))
	}
	return errs
}

func validateMetric(m *autoscalingv2.MetricSpec, r rules, p *field.Path) (errs field.ErrorList) {
	if m.Type == "" {
		errs = append(errs, field.Required(p.Child("type"), "must specify a metric source type"))
	}
	if !slices.Contains(sourceTypes, m.Type) {
		errs = append(errs, field.NotSupported(p.Child("type"), m.Type, sourceTypes))
	}
	sources := []struct {
		of    autoscalingv2.MetricSourceType
		field string
		set   bool
		check func(*field.Path) field.ErrorList
	}{
		{autoscalingv2.ObjectMetricSourceType, "object", m.Object != nil,
			func(p *field.Path) field.ErrorList { return validateObject(m.Object, r.objects, p) }},
		{autoscalingv2.ExternalMetricSourceType, "external", m.External != nil,
			func(p *field.Path) field.ErrorList { return validateExternal(m.External, p) }},
		{autoscalingv2.PodsMetricSourceType, "pods", m.Pods != nil,
			func(p *field.Path) field.ErrorList { return validatePods(m.Pods, p) }},
		{autoscalingv2.ResourceMetricSourceType, "resource", m.Resource != nil,
			func(p *field.Path) field.ErrorList { return validateResource(m.Resource, p) }},
		{autoscalingv2.ContainerResourceMetricSourceType, "containerResource", m.ContainerResource != nil,
			func(p *field.Path) field.ErrorList {
				return validateContainerResource(m.ContainerResource, p)
			}},
	}
	n := 0
	for _, s := range sources {
		if s.set {
			if n++; n == 1 {
				errs = append(errs, s.check(p.Child(s.field))...)
			}
		}
	}
	if !slices.Contains(sourceTypes, m.Type) { // which is told of beside its source, too
		errs = append(errs, field.NotSupported(p.Child("type"), m.Type, sourceTypes))
	}
	for _, s := range sources {
		switch {
		case s.of == m.Type && !s.set:
			errs = append(errs, field.Required(p.Child(s.field), "must populate information for the given metric source"))
		case s.of != m.Type && s.set && n > 1:
			errs = append(errs, field.Forbidden(p.Child(s.field), "must populate the given metric source only"))
		}
	}
	return errs
}

func validateObject(s *autoscalingv2.ObjectMetricSource, r refRules, p *field.Path) field.ErrorList {
	errs := validateReference(&s.DescribedObject, r, p.Child("describedObject"))
	errs = append(errs, validateSegment(s.Metric.Name, "must specify a metric name", p.Child("metric", "name"))...)
	errs = append(errs, validateTarget(&s.Target, p.Child("target"))...)
	if s.Target.Value == nil && s.Target.AverageValue == nil {
		errs = append(errs, field.Required(p.Child("target", "averageValue"), "must set either a target value or averageValue"))
	}
	return errs
}

func validateExternal(s *autoscalingv2.ExternalMetricSource, p *field.Path) field.ErrorList {
	errs := validateSegment(s.Metric.Name, "must specify a metric name", p.Child("metric", "name"))
	errs = append(errs, validateTarget(&s.Target, p.Child("target"))...)
	if s.Target.Value == nil && s.Target.AverageValue == nil {
		errs = append(errs, field.Required(p.Child("target", "averageValue"), "must set either a target value for metric or a per-pod target"))
	}
	if s.Target.Value != nil && s.Target.AverageValue != nil {
		errs = append(errs, field.Forbidden(p.Child("target", "value"), "may not set both a target value for metric and a per-pod target"))
	}
	return errs
}

func validatePods(s *autoscalingv2.PodsMetricSource, p *field.Path) field.ErrorList {
	errs := validateSegment(s.Metric.Name, "must specify a metric name", p.Child("metric", "name"))
	errs = append(errs, validateTarget(&s.Target, p.Child("target"))...)
	if s.Target.AverageValue == nil {
		errs = append(errs, field.Required(p.Child("target", "averageValue"), "must specify a positive target averageValue"))
	}
	return errs
}

func validateResource(s *autoscalingv2.ResourceMetricSource, p *field.Path) (errs field.ErrorList) {
	if s.Name == "" {
		errs = append(errs, field.Required(p.Child("name"), "must specify a resource name"))
	}
	return append(errs, validateUsage(&s.Target, p.Child("target"))...)
}

func validateContainerResource(s *autoscalingv2.ContainerResourceMetricSource, p *field.Path) (errs field.ErrorList) {
	if s.Name == "" {
		errs = append(errs, field.Required(p.Child("name"), "must specify a resource name"))
	} else {
		errs = append(errs, podspec.ValidateContainerResourceName(s.Name, p.Child("name"))...)
	}
	if s.Container == "" {
		errs = append(errs, field.Required(p.Child("container"), "must specify a container"))
	}
	for _, msg := range validation.IsDNS1123Label(s.Container) {
		if s.Container != "" {
			errs = append(errs, field.Invalid(p.Child("container"), s.Container, msg))
		}
	}
	return append(errs, validateUsage(&s.Target, p.Child("target"))...)
}

// validateUsage checks a target of which either the raw value or the
// utilization is given.
func validateUsage(t *autoscalingv2.MetricTarget, p *field.Path) field.ErrorList {
	errs := validateTarget(t, p)
	if t.AverageUtilization == nil && t.AverageValue == nil {
		errs = append(errs, field.Required(p.Child("averageUtilization"), "must set either a target raw value or a target utilization"))
	}
	if t.AverageUtilization != nil && t.AverageValue != nil {
		errs = append(errs, field.Forbidden(p.Child("averageValue"), "may not set both a target raw value and a target utilization"))
	}
	return errs
}

func validateTarget(t *autoscalingv2.MetricTarget, p *field.Path) (errs field.ErrorList) {
	if t.Type == "" {
		errs = append(errs, field.Required(p.Child("type"), "must specify a metric target type"))
	}
	if !slices.Contains(targetTypes, t.Type) {
		errs = append(errs, field.Invalid(p.Child("type"), t.Type, "must be either Utilization, Value, or AverageValue"))
	}
	for _, q := range []struct {
		field string
		value *resource.Quantity
	}{{"value", t.Value}, {"averageValue", t.AverageValue}} {
		if q.value != nil && q.value.Sign() != 1 {
			errs = append(errs, field.Invalid(p.Child(q.field), q.value.String(), "must be positive"))
		}
	}
	if u := t.AverageUtilization; u != nil && *u < 1 {
		errs = append(errs, field.Invalid(p.Child("averageUtilization"), *u, "must be greater than 0"))
	}
	return errs
}
