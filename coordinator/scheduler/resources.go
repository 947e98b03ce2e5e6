package scheduler

import (
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-helpers/resource"
)

// ResourcesPath is where a monitor finds what pods request.
const ResourcesPath = "/metrics/resources"

// Resources serves what each pod that is not over requests and may use at most, one
// series for each resource (KEP-1748).
func Resources(pods corelisters.PodLister) http.Handler {
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(&podResources{pods: pods})
	return metrics.HandlerFor(registry, metrics.HandlerOpts{})
}

type podResources struct {
	metrics.BaseStableCollector
	pods corelisters.PodLister
}

var (
	podResourceLabels = []string{"namespace", "pod", "node", "scheduler", "priority", "resource", "unit"}
	podRequest        = podResourceDesc("kube_pod_resource_request", "Resources requested by workloads")
	podLimit          = podResourceDesc("kube_pod_resource_limit", "Resources limit for workloads")
)

func podResourceDesc(name, what string) *metrics.Desc {
	return metrics.NewDesc(name, what+" on the cluster, broken down by pod. This shows the resource usage the scheduler "+
		"and kubelet expect per pod for resources along with the unit for the resource if any.", podResourceLabels, nil,
		metrics.STABLE, "")
}

// DescribeWithStability implements metrics.StableCollector, as does the next.
func (c *podResources) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- podRequest
	ch <- podLimit
}

// CollectWithStability looks at the pods when it is asked.
func (c *podResources) CollectWithStability(ch chan<- metrics.Metric) {
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return // a lister of an index does not fail
	}
	for _, p := range pods {
		over := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if over && p.Spec.NodeName != "" {
			continue
		}
		tellResources(ch, podRequest, p, resource.PodRequests(p, resource.PodResourcesOptions{}))
		tellResources(ch, podLimit, p, resource.PodLimits(p, resource.PodResourcesOptions{}))
	}
}

func tellResources(ch chan<- metrics.Metric, desc *metrics.Desc, p *corev1.Pod, list corev1.ResourceList) {
	priority := ""
	if p.Spec.Priority != nil {
		priority = strconv.Itoa(int(*p.Spec.Priority))
	}
	for name, q := range list {
		if q.IsZero() {
			continue
		}
		ch <- metrics.NewLazyConstMetric(desc, metrics.GaugeValue, q.AsApproximateFloat64(), p.Namespace, p.Name,
			p.Spec.NodeName, p.Spec.SchedulerName, priority, string(name), unitOf(name))
	}
}

// unitOf is what a resource is counted in, as far as it is known.
func unitOf(name corev1.ResourceName) string {
	switch {
	case name == corev1.ResourceCPU:
		return "cores"
	case name == corev1.ResourceMemory, name == corev1.ResourceStorage, name == corev1.ResourceEphemeralStorage,
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
		return "bytes"
	case strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix):
		return "integer"
	}
	return ""
}
