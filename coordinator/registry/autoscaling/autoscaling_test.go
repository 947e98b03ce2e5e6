package autoscaling

import (
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func newAutoscaler() *autoscaler {
	return &autoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{"a": "b"}},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment",
				Name: "web"}, MaxReplicas: 5,
		},
	}
}

// The messages are v1.36's.
func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*autoscaler)
		want   string
	}{
		"good":     {func(*autoscaler) {}, ""},
		"no_most":  {func(a *autoscaler) { a.Spec.MaxReplicas = 0 }, "must be set and greater than 0"},
		"inverted": {func(a *autoscaler) { a.Spec.MinReplicas = ptr.To[int32](6) }, "must be greater than or equal to `minReplicas`"},
		"zero":     {func(a *autoscaler) { a.Spec.MinReplicas = ptr.To[int32](0) }, "must be greater than or equal to 1"},
		"no_group": {func(a *autoscaler) { a.Spec.ScaleTargetRef.APIVersion = "v1" }, "apiVersion must specify API group"},
		"replication": {func(a *autoscaler) {
			a.Spec.ScaleTargetRef.APIVersion, a.Spec.ScaleTargetRef.Kind = "v1", "ReplicationController"
		}, ""},
		"no_kind":   {func(a *autoscaler) { a.Spec.ScaleTargetRef.Kind = "" }, "spec.scaleTargetRef.kind: Required value"},
		"no_source": {func(a *autoscaler) { a.Spec.Metrics[0].Resource = nil }, "must populate information for the given metric source"},
		"two_sources": {func(a *autoscaler) {
			a.Spec.Metrics[0].Pods = &autoscalingv2.PodsMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "m"}}
		}, "must populate the given metric source only"},
		"no_target": {func(a *autoscaler) { a.Spec.Metrics[0].Resource.Target.AverageUtilization = nil }, "must set either a target raw value or a target utilization"},
		"negative":  {func(a *autoscaler) { a.Spec.Metrics[0].Resource.Target.AverageUtilization = ptr.To[int32](0) }, "must be greater than 0"},
		"window": {func(a *autoscaler) {
			a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
				ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To[int32](3601)}}
			setDefaults(a)
		}, "must be less than or equal to 3600"},
		"period": {func(a *autoscaler) {
			a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: &autoscalingv2.HPAScalingRules{
				Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy, Value: 1}},
			}}
			setDefaults(a)
		}, "periodSeconds: Invalid value: 0: must be greater than zero"},
	} {
		a := newAutoscaler()
		setDefaults(a)
		c.change(a)
		errs := validateSpec(&a.Spec, nil)
		if c.want == "" && len(errs) > 0 || c.want != "" &&
			(len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, errs, c.want)
		}
	}
}

// What v1 has no fields for travels in annotations.
func TestV1RoundTrip(t *testing.T) {
	a := newAutoscaler()
	five := resource.MustParse("5")
	a.Spec.Metrics = []autoscalingv2.MetricSpec{
		{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
			Metric: metric("qps", nil),
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &five},
		}},
		{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
			Metric: metric("queue", &metav1.LabelSelector{MatchLabels: map[string]string{"k": "v"}}),
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: &five},
		}},
		utilizationOfCPU(50),
	}
	a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To[int32](7)}}
	setDefaults(a)
	a.Status = autoscalingv2.HorizontalPodAutoscalerStatus{
		CurrentReplicas: 2, DesiredReplicas: 3,
		Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{
			{Type: autoscalingv2.AbleToScale, Status: corev1.ConditionTrue, Reason: "r"}},
		CurrentMetrics: []autoscalingv2.MetricStatus{
			{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricStatus{
				Name:    corev1.ResourceCPU,
				Current: autoscalingv2.MetricValueStatus{AverageUtilization: ptr.To[int32](40), AverageValue: &five},
			}}},
	}
	old := &autoscalingv1.HorizontalPodAutoscaler{}
	if err := toV1(a, old); err != nil {
		t.Fatal(err)
	}
	if *old.Spec.TargetCPUUtilizationPercentage != 50 || *old.Status.CurrentCPUUtilizationPercentage != 40 ||
		len(old.Annotations) != 5 || len(a.Annotations) != 1 {
		t.Errorf("%+v", old)
	}
	const behavior = `"ScaleDown":{"StabilizationWindowSeconds":7,`
	if got := old.Annotations[behaviorAnnotation]; !strings.Contains(got, behavior) {
		t.Errorf("behavior is written as %s", got)
	}
	back := &autoscaler{}
	fromV1(old, back)
	if !equality.Semantic.DeepEqual(a, back) {
		t.Errorf("came back different:\n%+v\n%+v", a, back)
	}
}

func TestV1Defaults(t *testing.T) {
	in, out := &autoscalingv1.HorizontalPodAutoscaler{Spec: autoscalingv1.HorizontalPodAutoscalerSpec{MaxReplicas: 3}},
		&autoscaler{}
	fromV1(in, out)
	if *out.Spec.MinReplicas != 1 || !isCPU(&out.Spec.Metrics[0]) ||
		*out.Spec.Metrics[0].Resource.Target.AverageUtilization != 80 {
		t.Errorf("%+v", out.Spec)
	}
	if got := metricsCell(out); got != "cpu: <unknown>/80%" {
		t.Error(got)
	}
	out.Spec.Metrics = append(out.Spec.Metrics, out.Spec.Metrics[0], out.Spec.Metrics[0])
	if got := metricsCell(out); got != "cpu: <unknown>/80%, cpu: <unknown>/80% + 1 more..." {
		t.Error(got)
	}
}
