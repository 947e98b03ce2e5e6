package autoscaling

import (
	"encoding/json"
	"fmt"
	"maps"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// Annotations that hold in v1 what its fields cannot.
const (
	metricsAnnotation    = "autoscaling.alpha.kubernetes.io/metrics"
	currentAnnotation    = "autoscaling.alpha.kubernetes.io/current-metrics"
	conditionsAnnotation = "autoscaling.alpha.kubernetes.io/conditions"
	behaviorAnnotation   = "autoscaling.alpha.kubernetes.io/behavior"
)

func addConversions(scheme *runtime.Scheme) error {
	for _, c := range []struct {
		a, b any
		f    conversion.ConversionFunc
	}{
		{(*autoscalingv1.HorizontalPodAutoscaler)(nil), (*autoscaler)(nil), func(a, b any, _ conversion.Scope) error {
			fromV1(a.(*autoscalingv1.HorizontalPodAutoscaler), b.(*autoscaler))
			return nil
		}},
		{(*autoscaler)(nil), (*autoscalingv1.HorizontalPodAutoscaler)(nil), func(a, b any, _ conversion.Scope) error {
			return toV1(a.(*autoscaler), b.(*autoscalingv1.HorizontalPodAutoscaler))
		}},
		{(*autoscalingv1.HorizontalPodAutoscalerList)(nil), (*autoscalingv2.HorizontalPodAutoscalerList)(nil),
			func(a, b any, _ conversion.Scope) error {
				in, out := a.(*autoscalingv1.HorizontalPodAutoscalerList), b.(*autoscalingv2.HorizontalPodAutoscalerList)
				out.ListMeta, out.Items = in.ListMeta, make([]autoscaler, len(in.Items))
				for i := range in.Items {
					fromV1(&in.Items[i], &out.Items[i])
				}
				return nil
			}},
		{(*autoscalingv2.HorizontalPodAutoscalerList)(nil), (*autoscalingv1.HorizontalPodAutoscalerList)(nil),
			func(a, b any, _ conversion.Scope) error {
				in, out := a.(*autoscalingv2.HorizontalPodAutoscalerList), b.(*autoscalingv1.HorizontalPodAutoscalerList)
				out.ListMeta, out.Items = in.ListMeta, make([]autoscalingv1.HorizontalPodAutoscaler, len(in.Items))
				for i := range in.Items {
					if err := toV1(&in.Items[i], &out.Items[i]); err != nil {
						return err
					}
				}
				return nil
			}},
	} {
		if err := scheme.AddConversionFunc(c.a, c.b, c.f); err != nil {
			return fmt.Errorf("register autoscalers: %w", err)
		}
	}
	return nil
}

// isCPU tells whether a metric is the one that v1 has a field for.
func isCPU(m *autoscalingv2.MetricSpec) bool {
	return m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil &&
		m.Resource.Name == corev1.ResourceCPU && m.Resource.Target.AverageUtilization != nil
}

func toV1(in *autoscaler, out *autoscalingv1.HorizontalPodAutoscaler) error {
	*out = autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: in.ObjectMeta,
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference(in.Spec.ScaleTargetRef),
			MinReplicas:    in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas,
		},
		Status: autoscalingv1.HorizontalPodAutoscalerStatus{
			ObservedGeneration: in.Status.ObservedGeneration, LastScaleTime: in.Status.LastScaleTime,
			CurrentReplicas: in.Status.CurrentReplicas, DesiredReplicas: in.Status.DesiredReplicas,
		},
	}
	notes := map[string]any{}
	var others []autoscalingv1.MetricSpec
	for i := range in.Spec.Metrics {
		if m := &in.Spec.Metrics[i]; isCPU(m) {
			out.Spec.TargetCPUUtilizationPercentage = m.Resource.Target.AverageUtilization
		} else {
			others = append(others, metricToV1(m))
		}
	}
	if len(others) > 0 {
		notes[metricsAnnotation] = others
	}
	var current []autoscalingv1.MetricStatus
	for i := range in.Status.CurrentMetrics {
		m := &in.Status.CurrentMetrics[i]
		current = append(current, statusToV1(m))
		if m.Resource != nil && m.Resource.Name == corev1.ResourceCPU && m.Resource.Current.AverageUtilization != nil {
			out.Status.CurrentCPUUtilizationPercentage = m.Resource.Current.AverageUtilization
		}
	}
	if len(current) > 0 {
		notes[currentAnnotation] = current
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	for _, c := range in.Status.Conditions {
		conditions = append(conditions, autoscalingv1.HorizontalPodAutoscalerCondition{
			Type: autoscalingv1.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	if len(conditions) > 0 {
		notes[conditionsAnnotation] = conditions
	}
	if in.Spec.Behavior != nil {
		notes[behaviorAnnotation] = &writtenBehavior{
			ScaleUp: writeRules(in.Spec.Behavior.ScaleUp), ScaleDown: writeRules(in.Spec.Behavior.ScaleDown)}
	}
	return annotate(out, notes)
}

// writtenBehavior is how a behavior stands in its annotation: clients know it by the
// names of upstream's Go fields, with those that are not set.
type writtenBehavior struct{ ScaleUp, ScaleDown *writtenRules }

type writtenRules struct {
	StabilizationWindowSeconds *int32
	SelectPolicy               *autoscalingv2.ScalingPolicySelect
	Policies                   []writtenPolicy
	Tolerance                  *resource.Quantity
}

type writtenPolicy struct {
	Type                 autoscalingv2.HPAScalingPolicyType
	Value, PeriodSeconds int32
}

func writeRules(r *autoscalingv2.HPAScalingRules) *writtenRules {
	if r == nil {
		return nil
	}
	out := &writtenRules{StabilizationWindowSeconds: r.StabilizationWindowSeconds, SelectPolicy: r.SelectPolicy,
		Tolerance: r.Tolerance}
	for _, p := range r.Policies {
		out.Policies = append(out.Policies, writtenPolicy(p))
	}
	return out
}

// annotate writes the notes, and drops those that others wrote.
func annotate(out *autoscalingv1.HorizontalPodAutoscaler, notes map[string]any) error {
	out.Annotations = withoutNotes(out.Annotations)
	for name, value := range notes {
		data, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("convert autoscaler %s: %w", out.Name, err)
		}
		if out.Annotations == nil {
			out.Annotations = map[string]string{}
		}
		out.Annotations[name] = string(data)
	}
	return nil
}

// withoutNotes returns a copy without what conversions wrote.
func withoutNotes(in map[string]string) map[string]string {
	out := maps.Clone(in)
	for _, name := range []string{metricsAnnotation, currentAnnotation, conditionsAnnotation, behaviorAnnotation} {
		delete(out, name)
	}
	return out
}

// readInto decodes one note; a note that is not there, or that nobody can read,
// changes nothing.
func readInto[T any](in *autoscalingv1.HorizontalPodAutoscaler, name string) (value T, ok bool) {
	text, ok := in.Annotations[name]
	ok = ok && json.Unmarshal([]byte(text), &value) == nil
	return value, ok
}

func fromV1(in *autoscalingv1.HorizontalPodAutoscaler, out *autoscaler) {
	*out = autoscaler{
		ObjectMeta: in.ObjectMeta,
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference(in.Spec.ScaleTargetRef),
			MinReplicas:    in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas,
		},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{
			ObservedGeneration: in.Status.ObservedGeneration, LastScaleTime: in.Status.LastScaleTime,
			CurrentReplicas: in.Status.CurrentReplicas, DesiredReplicas: in.Status.DesiredReplicas,
		},
	}
	others, _ := readInto[[]autoscalingv1.MetricSpec](in, metricsAnnotation)
	for i := range others {
		out.Spec.Metrics = append(out.Spec.Metrics, metricFromV1(&others[i]))
	}
	if u := in.Spec.TargetCPUUtilizationPercentage; u != nil {
		out.Spec.Metrics = append(out.Spec.Metrics, utilizationOfCPU(*u))
	}
	if b, ok := readInto[autoscalingv2.HorizontalPodAutoscalerBehavior](in, behaviorAnnotation); ok &&
		(b.ScaleUp != nil || b.ScaleDown != nil) {
		out.Spec.Behavior = &b
	}
	if u := in.Status.CurrentCPUUtilizationPercentage; u != nil {
		out.Status.CurrentMetrics = []autoscalingv2.MetricStatus{
			{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricStatus{
				Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: u},
			}}}
	}
	if current, ok := readInto[[]autoscalingv1.MetricStatus](in, currentAnnotation); ok {
		out.Status.CurrentMetrics = nil
		for i := range current {
			out.Status.CurrentMetrics = append(out.Status.CurrentMetrics, statusFromV1(&current[i]))
		}
	}
	conditions, _ := readInto[[]autoscalingv1.HorizontalPodAutoscalerCondition](in, conditionsAnnotation)
	for _, c := range conditions {
		out.Status.Conditions = append(out.Status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{
			Type: autoscalingv2.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	out.Annotations = withoutNotes(in.Annotations)
	// Requests in v1 are defaulted here: only now all metrics are known.
	setDefaults(out)
}
