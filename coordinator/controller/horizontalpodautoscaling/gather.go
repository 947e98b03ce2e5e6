package horizontalpodautoscaling

import (
	"context"
	"errors"
	"fmt"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	custommetricsv1beta2 "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	typedmetricsv1beta1 "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	custommetrics "k8s.io/metrics/pkg/client/custom_metrics"
	externalmetrics "k8s.io/metrics/pkg/client/external_metrics"
)

// defaultWindow is that of a custom metric that tells none.
const defaultWindow = time.Minute

// PodMetric is what one pod uses, or another number of it, in thousandths.
type PodMetric struct {
	Value  int64
	Time   time.Time
	Window time.Duration
}

// PodMetrics are those of pods by name.
type PodMetrics map[string]PodMetric

// Metrics answers for the three metrics APIs. Values are in thousandths.
type Metrics interface {
	// Resource returns what pods use of a resource, or what one container of each
	// does.
	Resource(ctx context.Context, resource corev1.ResourceName, namespace string, selector labels.Selector,
		container string) (PodMetrics, error)
	// Pods returns a custom metric of pods.
	Pods(metric, namespace string, selector, metricSelector labels.Selector) (PodMetrics, error)
	// Object returns a custom metric of one object.
	Object(metric, namespace string, object autoscalingv2.CrossVersionObjectReference,
		metricSelector labels.Selector) (int64, error)
	// External returns all values of a metric of something outside the cluster.
	External(metric, namespace string, selector labels.Selector) ([]int64, error)
}

// answer is what a metrics API said about one metric of an autoscaler.
type answer struct {
	pods  PodMetrics
	value int64
	err   error
}

// gather asks for a metric. The errors have upstream's words.
func gather(ctx context.Context, from Metrics, namespace string, selector labels.Selector,
	spec *autoscalingv2.MetricSpec) answer {
	switch spec.Type {
	case autoscalingv2.ResourceMetricSourceType:
		return gatherResource(ctx, from, spec.Resource.Name, namespace, selector, "")
	case autoscalingv2.ContainerResourceMetricSourceType:
		c := spec.ContainerResource
		return gatherResource(ctx, from, c.Name, namespace, selector, c.Container)
	case autoscalingv2.PodsMetricSourceType:
		metric := spec.Pods.Metric
		metricSelector, err := metav1.LabelSelectorAsSelector(metric.Selector)
		if err != nil {
			return answer{err: err}
		}
		pods, err := from.Pods(metric.Name, namespace, selector, metricSelector)
		if err != nil {
			err = fmt.Errorf("unable to get metric %s: %w", metric.Name, err)
		}
		return answer{pods: pods, err: err}
	case autoscalingv2.ObjectMetricSourceType:
		metric, of := spec.Object.Metric, spec.Object.DescribedObject
		metricSelector, err := metav1.LabelSelectorAsSelector(metric.Selector)
		if err != nil {
			return answer{err: err}
		}
		value, err := from.Object(metric.Name, namespace, of, metricSelector)
		if err != nil {
			err = fmt.Errorf("unable to get metric %s: %s on %s %s/%w", metric.Name, of.Kind, namespace, of.Name, err)
		}
		return answer{value: value, err: err}
	case autoscalingv2.ExternalMetricSourceType:
		return gatherExternal(from, spec.External.Metric, namespace)
	}
	return answer{}
}

func gatherResource(ctx context.Context, from Metrics, resource corev1.ResourceName, namespace string,
	selector labels.Selector, container string) answer {
	pods, err := from.Resource(ctx, resource, namespace, selector, container)
	if err != nil {
		err = fmt.Errorf("unable to get metrics for resource %s: %w", resource, err)
	}
	return answer{pods: pods, err: err}
}

func gatherExternal(from Metrics, metric autoscalingv2.MetricIdentifier, namespace string) answer {
	selector, err := metav1.LabelSelectorAsSelector(metric.Selector)
	if err != nil {
		return answer{err: err}
	}
	values, err := from.External(metric.Name, namespace, selector)
	if err != nil {
		err = fmt.Errorf("unable to get external metric %s/%s/%+v: %w", namespace, metric.Name, metric.Selector, err)
	}
	out := answer{err: err}
	for _, v := range values {
		out.value = addCapped(out.value, v)
	}
	return out
}

// Clients are the metrics APIs that a cluster serves, as Metrics.
type Clients struct {
	Resources typedmetricsv1beta1.PodMetricsesGetter
	Custom    custommetrics.CustomMetricsClient
	Externals externalmetrics.ExternalMetricsClient
}

var _ Metrics = Clients{}

// Resource implements Metrics.
func (c Clients) Resource(ctx context.Context, resource corev1.ResourceName, namespace string,
	selector labels.Selector, container string) (PodMetrics, error) {
	list, err := c.Resources.PodMetricses(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from resource metrics API")
	}
	out := PodMetrics{}
	for i := range list.Items {
		m := &list.Items[i]
		if value, ok := usageOf(m, resource, container); ok {
			out[m.Name] = PodMetric{Value: value, Time: m.Timestamp.Time, Window: m.Window.Duration}
		}
	}
	return out, nil
}

// usageOf sums what containers use, or tells of one; false when one of them does
// not say.
func usageOf(m *metricsv1beta1.PodMetrics, resource corev1.ResourceName, container string) (int64, bool) {
	sum, found := int64(0), false
	for _, c := range m.Containers {
		if container != "" && c.Name != container {
			continue
		}
		value, ok := c.Usage[resource]
		if !ok {
			return 0, false
		}
		sum, found = sum+value.MilliValue(), true
	}
	return sum, found
}

// Pods implements Metrics.
func (c Clients) Pods(metric, namespace string, selector, metricSelector labels.Selector) (PodMetrics, error) {
	list, err := c.Custom.NamespacedMetrics(namespace).GetForObjects(schema.GroupKind{Kind: "Pod"}, selector, metric,
		metricSelector)
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from custom metrics API")
	}
	out := PodMetrics{}
	for _, m := range list.Items {
		window := defaultWindow
		if m.WindowSeconds != nil {
			window = time.Duration(*m.WindowSeconds) * time.Second
		}
		out[m.DescribedObject.Name] = PodMetric{Value: m.Value.MilliValue(), Time: m.Timestamp.Time, Window: window}
	}
	return out, nil
}

// Object implements Metrics. A Namespace is always the autoscaler's own, whatever
// name is given.
func (c Clients) Object(metric, namespace string, object autoscalingv2.CrossVersionObjectReference,
	metricSelector labels.Selector) (int64, error) {
	kind := schema.FromAPIVersionAndKind(object.APIVersion, object.Kind).GroupKind()
	var got *custommetricsv1beta2.MetricValue
	var err error
	if kind == (schema.GroupKind{Kind: "Namespace"}) {
		got, err = c.Custom.RootScopedMetrics().GetForObject(kind, namespace, metric, metricSelector)
	} else {
		got, err = c.Custom.NamespacedMetrics(namespace).GetForObject(kind, object.Name, metric, metricSelector)
	}
	if err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	return got.Value.MilliValue(), nil
}

// External implements Metrics.
func (c Clients) External(metric, namespace string, selector labels.Selector) ([]int64, error) {
	list, err := c.Externals.NamespacedMetrics(namespace).List(metric, selector)
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from external metrics API")
	}
	out := make([]int64, 0, len(list.Items))
	for _, m := range list.Items {
		out = append(out, m.Value.MilliValue())
	}
	return out, nil
}
