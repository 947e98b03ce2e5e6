package horizontalpodautoscaling

import (
	"errors"
	"fmt"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// tolerance is how far a ratio may be from 1 where an autoscaler says nothing.
const tolerance = 0.1

// tolerancesOf are an autoscaler's own (KEP-4951), or 10 %.
func tolerancesOf(hpa *autoscalingv2.HorizontalPodAutoscaler) tolerances {
	t := tolerances{down: tolerance, up: tolerance}
	if b := hpa.Spec.Behavior; b != nil {
		if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
			t.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
		}
		if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
			t.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
		}
	}
	return t
}

// proposal is the number of replicas that one metric asks for.
type proposal struct {
	replicas int32
	// metric describes it.
	metric string
	status autoscalingv2.MetricStatus
	// failed is why there is no number, under reason in condition and event; told is
	// the same in the words of the whole.
	failed, told error
	reason       string
}

// situation is what proposals are made from, beside the metrics.
type situation struct {
	pods []*corev1.Pod
	// replicas are those of the target's spec, counted those of its status.
	replicas, counted int32
	tolerances        tolerances
	now               time.Time
}

func milli(value int64) *resource.Quantity {
	return resource.NewMilliQuantity(value, resource.DecimalSI)
}

// propose makes of the answer about one metric a number of replicas.
func (s situation) propose(spec *autoscalingv2.MetricSpec, a answer) (p proposal) {
	switch spec.Type {
	case autoscalingv2.ResourceMetricSourceType:
		r := spec.Resource
		current := s.byResource(&p, r.Name, "", r.Target, a)
		p.status.Resource = &autoscalingv2.ResourceMetricStatus{Name: r.Name, Current: current}
		p.failedAs("FailedGetResourceMetric", "failed to get %s resource metric value: %w", r.Name)
	case autoscalingv2.ContainerResourceMetricSourceType:
		c := spec.ContainerResource
		current := s.byResource(&p, c.Name, c.Container, c.Target, a)
		p.status.ContainerResource = &autoscalingv2.ContainerResourceMetricStatus{Name: c.Name, Container: c.Container,
			Current: current}
		p.failedAs("FailedGetContainerResourceMetric", "failed to get %s container metric value: %w", c.Container)
	case autoscalingv2.PodsMetricSourceType:
		s.byPods(&p, spec.Pods, a)
		p.failedAs("FailedGetPodsMetric", "failed to get %s metric value: %w", "pods")
	case autoscalingv2.ObjectMetricSourceType:
		s.byObject(&p, spec.Object, a)
		p.failedAs("FailedGetObjectMetric", "failed to get %s metric value: %w", "object")
	case autoscalingv2.ExternalMetricSourceType:
		s.byExternal(&p, spec.External, a)
		p.failedAs("FailedGetExternalMetric", "failed to get %s external metric value: %w", spec.External.Metric.Name)
	default:
		p.failed = specError{fmt.Errorf("unknown metric source type %q", spec.Type)}
		p.reason, p.told = "InvalidMetricSourceType", p.failed
	}
	if p.failed != nil {
		p.status = autoscalingv2.MetricStatus{}
	} else {
		p.status.Type = spec.Type
	}
	return p
}

// failedAs says why there is no number, if there is none.
func (p *proposal) failedAs(reason, format string, name any) {
	if p.failed != nil {
		p.reason, p.told = reason, fmt.Errorf(format, name, p.failed)
	}
}

func (s situation) byResource(p *proposal, name corev1.ResourceName, container string,
	t autoscalingv2.MetricTarget, a answer) (current autoscalingv2.MetricValueStatus) {
	format := resource.DecimalSI
	if name == corev1.ResourceMemory {
		format = resource.BinarySI
	}
	var err error
	if t.AverageValue != nil {
		p.metric = fmt.Sprintf("%s resource", name)
		if current.AverageValue, err = s.average(p, t.AverageValue, name == corev1.ResourceCPU, a); err != nil {
			p.failed = fmt.Errorf("failed to get %s usage: %w", name, err)
			return current
		}
		current.AverageValue.Format = format
		return current
	}
	if t.AverageUtilization == nil {
		p.failed = errors.New("invalid resource metric source: " +
			"neither an average utilization target nor an average value (usage) target was set")
		return current
	}
	p.metric = fmt.Sprintf("%s resource utilization (percentage of request)", name)
	if container != "" {
		p.metric = fmt.Sprintf("%s container resource utilization (percentage of request)", name)
	}
	of := &utilization{percent: *t.AverageUtilization, resource: name, container: container}
	var is score
	if err = a.err; err == nil {
		cpu := name == corev1.ResourceCPU
		p.replicas, is, err = countByPods(s.pods, a.pods, cpu, of, s.replicas, s.tolerances, s.now)
	}
	if err != nil {
		p.failed = fmt.Errorf("failed to get %s utilization: %w", name, err)
		return current
	}
	return autoscalingv2.MetricValueStatus{AverageUtilization: &is.utilization,
		AverageValue: resource.NewMilliQuantity(is.average, format)}
}

// average holds pods against a value for each of them, and returns their average.
func (s situation) average(p *proposal, value *resource.Quantity, cpu bool, a answer) (*resource.Quantity, error) {
	if a.err != nil {
		return nil, a.err
	}
	var is score
	var err error
	p.replicas, is, err = countByPods(s.pods, a.pods, cpu, averageValue(value.MilliValue()), s.replicas, s.tolerances,
		s.now)
	return milli(is.average), err
}

func (s situation) byPods(p *proposal, spec *autoscalingv2.PodsMetricSource, a answer) {
	p.metric = "pods metric " + spec.Metric.Name
	var average *resource.Quantity
	average, p.failed = s.average(p, spec.Target.AverageValue, false, a)
	p.status.Pods = &autoscalingv2.PodsMetricStatus{Metric: spec.Metric,
		Current: autoscalingv2.MetricValueStatus{AverageValue: average}}
}

func (s situation) byObject(p *proposal, spec *autoscalingv2.ObjectMetricSource, a answer) {
	status := &autoscalingv2.ObjectMetricStatus{DescribedObject: spec.DescribedObject, Metric: spec.Metric}
	p.status.Object = status
	switch t := spec.Target; {
	case t.Type == autoscalingv2.ValueMetricType && t.Value != nil:
		p.metric = fmt.Sprintf("%s metric %s", spec.DescribedObject.Kind, spec.Metric.Name)
		if p.failed = s.value(p, t.Value, a); p.failed == nil {
			status.Current.Value = milli(a.value)
		}
	case t.Type == autoscalingv2.AverageValueMetricType && t.AverageValue != nil:
		p.metric = fmt.Sprintf("external metric %s(%+v)", spec.Metric.Name, spec.Metric.Selector)
		if a.err != nil {
			p.failed = fmt.Errorf("failed to get %s object metric: %w", spec.Metric.Name, a.err)
			return
		}
		status.Current.AverageValue = s.share(p, t.AverageValue, a)
	default:
		p.failed = errNoTarget("object")
	}
}

func (s situation) byExternal(p *proposal, spec *autoscalingv2.ExternalMetricSource, a answer) {
	p.metric = fmt.Sprintf("external metric %s(%+v)", spec.Metric.Name, spec.Metric.Selector)
	status := &autoscalingv2.ExternalMetricStatus{Metric: spec.Metric}
	p.status.External = status
	switch t := spec.Target; {
	case t.AverageValue != nil:
		if a.err != nil {
			p.failed = fmt.Errorf("failed to get %s external metric: %w", spec.Metric.Name, a.err)
			return
		}
		status.Current.AverageValue = s.share(p, t.AverageValue, a)
	case t.Value != nil:
		if err := s.value(p, t.Value, a); err != nil {
			p.failed = fmt.Errorf("failed to get external metric %s: %w", spec.Metric.Name, err)
			return
		}
		status.Current.Value = milli(a.value)
	default:
		p.failed = errNoTarget("external")
	}
}

func errNoTarget(source string) error {
	return fmt.Errorf("invalid %s metric source: neither a value target nor an average value target was set", source)
}

func (s situation) value(p *proposal, target *resource.Quantity, a answer) (err error) {
	if a.err != nil {
		return a.err
	}
	p.replicas, err = countByValue(s.pods, a.value, target.MilliValue(), s.replicas, s.tolerances)
	return err
}

func (s situation) share(p *proposal, target *resource.Quantity, a answer) *resource.Quantity {
	replicas, share := countByShare(a.value, target.MilliValue(), s.counted, s.tolerances)
	p.replicas = replicas
	return milli(share)
}
