// Package autoscaling declares HorizontalPodAutoscaler, in the versions v2 and
// v1 of the API group autoscaling: v2 is what is stored, v1 converts to it.
package autoscaling

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

type autoscaler = autoscalingv2.HorizontalPodAutoscaler

// Kinds lists the kinds of the group.
func Kinds() []kind.Kind { return []kind.Kind{twoVersions{newKind()}} }

// twoVersions adds the conversions of v1.
type twoVersions struct{ kind.Kind }

func (k twoVersions) AddTo(scheme *runtime.Scheme) error {
	if err := k.Kind.AddTo(scheme); err != nil {
		return err
	}
	return addConversions(scheme)
}

func newKind() kind.Kind {
	doc, status := autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc(),
		autoscalingv2.HorizontalPodAutoscalerStatus{}.SwaggerDoc()
	return kind.Of[autoscaler]{
		Names: kind.Names{
			GroupVersion: autoscalingv2.SchemeGroupVersion, Resource: "horizontalpodautoscalers", Singular: "horizontalpodautoscaler",
			ShortNames: []string{"hpa"}, Categories: []string{"all"}, List: &autoscalingv2.HorizontalPodAutoscalerList{},
			AlsoServed: []schema.GroupVersion{autoscalingv1.SchemeGroupVersion},
		},
		Default: setDefaults,
		Create:  func(_ context.Context, a *autoscaler) { a.Status = autoscalingv2.HorizontalPodAutoscalerStatus{} },
		Validate: func(_ context.Context, a *autoscaler) field.ErrorList {
			return validateSpec(&a.Spec, nil)
		},
		ValidateUpdate: func(_ context.Context, a, old *autoscaler) field.ErrorList {
			return validateSpec(&a.Spec, &old.Spec)
		},
		Status: &kind.StatusOf[autoscaler]{
			Copy:     func(to, from *autoscaler) { to.Status = from.Status },
			Validate: func(_ context.Context, a, _ *autoscaler) field.ErrorList { return validateStatus(&a.Status) },
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Reference", "string", doc["scaleTargetRef"]),
			kind.Column("Targets", "string", doc["metrics"]),
			kind.Column("MinPods", "string", doc["minReplicas"]),
			kind.Column("MaxPods", "string", doc["maxReplicas"]),
			kind.Column("Replicas", "string", status["currentReplicas"]),
			kind.AgeColumn(),
		},
		Row: func(a *autoscaler) []any {
			least := "<unset>"
			if a.Spec.MinReplicas != nil {
				least = strconv.Itoa(int(*a.Spec.MinReplicas))
			}
			target := a.Spec.ScaleTargetRef
			return []any{a.Name, target.Kind + "/" + target.Name, metricsCell(a), least, int64(a.Spec.MaxReplicas),
				int64(a.Status.CurrentReplicas), kind.Age(a.CreationTimestamp)}
		},
	}.Kind()
}

// defaultUtilization in percent, of an autoscaler that names no metric.
const defaultUtilization = 80

func setDefaults(a *autoscaler) {
	if a.Spec.MinReplicas == nil {
		a.Spec.MinReplicas = ptr.To[int32](1)
	}
	if len(a.Spec.Metrics) == 0 {
		a.Spec.Metrics = []autoscalingv2.MetricSpec{utilizationOfCPU(defaultUtilization)}
	}
	if b := a.Spec.Behavior; b != nil {
		b.ScaleUp = withDefaults(b.ScaleUp, autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: ptr.To[int32](0), SelectPolicy: ptr.To(autoscalingv2.MaxChangePolicySelect),
			Policies: []autoscalingv2.HPAScalingPolicy{
				{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15},
				{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
			},
		})
		b.ScaleDown = withDefaults(b.ScaleDown, autoscalingv2.HPAScalingRules{
			SelectPolicy: ptr.To(autoscalingv2.MaxChangePolicySelect),
			Policies: []autoscalingv2.HPAScalingPolicy{
				{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}},
		})
	}
}

func utilizationOfCPU(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{
			Name:   corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
		}}
}

// withDefaults fills in what rules leave out.
func withDefaults(rules *autoscalingv2.HPAScalingRules, d autoscalingv2.HPAScalingRules) *autoscalingv2.HPAScalingRules {
	if rules == nil {
		return &d
	}
	if rules.SelectPolicy == nil {
		rules.SelectPolicy = d.SelectPolicy
	}
	if rules.StabilizationWindowSeconds == nil {
		rules.StabilizationWindowSeconds = d.StabilizationWindowSeconds
	}
	if rules.Policies == nil {
		rules.Policies = d.Policies
	}
	return rules
}

// metricsCell prints the first two metrics, current values before targets.
func metricsCell(a *autoscaler) string {
	const most = 2
	if len(a.Spec.Metrics) == 0 {
		return "<none>"
	}
	var cells []string
	for i := range a.Spec.Metrics {
		status := autoscalingv2.MetricStatus{}
		if i < len(a.Status.CurrentMetrics) {
			status = a.Status.CurrentMetrics[i]
		}
		cells = append(cells, metricCell(&a.Spec.Metrics[i], &status))
	}
	if n := len(cells); n > most {
		return fmt.Sprintf("%s + %d more...", strings.Join(cells[:most], ", "), n-most)
	}
	return strings.Join(cells, ", ")
}

func metricCell(spec *autoscalingv2.MetricSpec, status *autoscalingv2.MetricStatus) string {
	target, current, name := metricParts(spec, status)
	if target == nil {
		return "<unknown type>"
	}
	switch {
	case name == "" && target.AverageValue != nil && spec.Type != autoscalingv2.PodsMetricSourceType:
		return quantityCell(current.AverageValue) + "/" + target.AverageValue.String() + " (avg)"
	case name == "" && target.AverageValue != nil:
		return quantityCell(current.AverageValue) + "/" + target.AverageValue.String()
	case name == "":
		return quantityCell(current.Value) + "/" + quantityCell(target.Value)
	case target.AverageValue != nil:
		return name + ": " + quantityCell(current.AverageValue) + "/" + target.AverageValue.String()
	}
	return name + ": " + percentCell(current.AverageUtilization, "<unknown>") + "/" +
		percentCell(target.AverageUtilization, "<auto>")
}

// metricParts finds a metric's target and current value; name is that of a
// resource, "" for other metrics.
func metricParts(spec *autoscalingv2.MetricSpec,
	status *autoscalingv2.MetricStatus) (target *autoscalingv2.MetricTarget,
	current autoscalingv2.MetricValueStatus, name string) {
	switch {
	case spec.Type == autoscalingv2.ExternalMetricSourceType && spec.External != nil:
		target = &spec.External.Target
		if status.External != nil {
			current = status.External.Current
		}
	case spec.Type == autoscalingv2.PodsMetricSourceType && spec.Pods != nil:
		target = &spec.Pods.Target
		if status.Pods != nil {
			current = status.Pods.Current
		}
	case spec.Type == autoscalingv2.ObjectMetricSourceType && spec.Object != nil:
		target = &spec.Object.Target
		if status.Object != nil {
			current = status.Object.Current
		}
	case spec.Type == autoscalingv2.ResourceMetricSourceType && spec.Resource != nil:
		target, name = &spec.Resource.Target, string(spec.Resource.Name)
		if status.Resource != nil {
			current = status.Resource.Current
		}
	case spec.Type == autoscalingv2.ContainerResourceMetricSourceType && spec.ContainerResource != nil:
		target, name = &spec.ContainerResource.Target, string(spec.ContainerResource.Name)
		if status.ContainerResource != nil {
			current = status.ContainerResource.Current
		}
	}
	return target, current, name
}

func quantityCell(q *resource.Quantity) string {
	if q == nil {
		return "<unknown>"
	}
	return q.String()
}

func percentCell(p *int32, none string) string {
	if p == nil {
		return none
	}
	return fmt.Sprintf("%d%%", *p)
}
