package quota

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	resourcehelper "k8s.io/component-helpers/resource"
)

var podResources = []corev1.ResourceName{
	"count/pods", corev1.ResourcePods,
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
}

// required must be set by each container where a quota names them; upstream
// keeps this for compatibility and adds no more.
var required = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
}

func newPods(list generic.ListFuncByNamespace) quotav1.Evaluator {
	return &evaluator[corev1.Pod]{
		resource: corev1.Resource("pods"), list: list, counts: isPodResource,
		usage:    func(p *corev1.Pod) corev1.ResourceList { return podUsage(p, time.Now()) },
		charged:  podCharged,
		requires: podRequires,
		inScope:  podInScope,
	}
}

func isPodResource(name corev1.ResourceName) bool {
	return slices.Contains(podResources, name) ||
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) ||
		strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix) ||
		strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) && isExtended(name)
}

// isExtended: neither a resource of Kubernetes itself nor without a domain, or
// a device class's implicit name (KEP-5004).
func isExtended(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") &&
		!strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix) ||
		strings.HasPrefix(strings.TrimPrefix(string(name), corev1.DefaultResourceRequestsPrefix), "deviceclass.resource.kubernetes.io/")
}

func podCharged(a admission.Attributes) bool {
	if a.GetSubresource() == "resize" {
		return a.GetOperation() == admission.Update
	}
	if a.GetSubresource() != "" {
		return false
	}
	if a.GetOperation() != admission.Update {
		return a.GetOperation() == admission.Create
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	old, wasPod := a.GetOldObject().(*corev1.Pod)
	return ok && wasPod && terminating(pod) != terminating(old) // it changes scope
}

// podRequires names each required resource that a container does not set. A pod
// with resources of its own need not.
func podRequires(names []corev1.ResourceName, pod *corev1.Pod) error {
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		return nil
	}
	var missing []string
	for _, name := range sorted(names) {
		if !slices.Contains(required, name) {
			continue
		}
		var without []string
		for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range list {
				r := &list[i].Resources
				if _, set := computeUsage(r.Requests, r.Limits)[name]; !set && !slices.Contains(without, list[i].Name) {
					without = append(without, list[i].Name)
				}
			}
		}
		if len(without) > 0 {
			slices.Sort(without)
			missing = append(missing, fmt.Sprintf("%s for: %s", name, strings.Join(without, ",")))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("must specify %s", strings.Join(missing, "; "))
	}
	return nil
}

func sorted(names []corev1.ResourceName) []corev1.ResourceName {
	out := slices.Clone(names)
	slices.Sort(out)
	return slices.Compact(out)
}

// podUsage is what a pod takes at a time. One that has ended, or whose deletion
// is overdue, takes nothing but its place among the objects.
func podUsage(pod *corev1.Pod, now time.Time) corev1.ResourceList {
	out := corev1.ResourceList{"count/pods": count(1)}
	if !PodCounts(pod, now) {
		return out
	}
	o := resourcehelper.PodResourcesOptions{
		UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}
	for name, q := range computeUsage(resourcehelper.PodRequests(pod, o), resourcehelper.PodLimits(pod, o)) {
		out[name] = q
	}
	return out
}

// computeUsage puts requests and limits under the names that quotas use.
func computeUsage(requests, limits corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{corev1.ResourcePods: count(1)}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory,
		corev1.ResourceEphemeralStorage} {
		if q, ok := requests[name]; ok {
			out[name], out[corev1.DefaultResourceRequestsPrefix+name] = q, q
		}
		if q, ok := limits[name]; ok {
			out["limits."+name] = q
		}
	}
	for name, q := range requests {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			out[name], out[corev1.DefaultResourceRequestsPrefix+name] = q, q
		} else if isExtended(name) {
			out[corev1.DefaultResourceRequestsPrefix+name] = q
		}
	}
	return out
}

// PodCounts tells whether a pod takes compute resources: it has not ended and
// is not overdue for deletion (its node may be lost).
func PodCounts(pod *corev1.Pod, now time.Time) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return false
	}
	if pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil {
		return true
	}
	grace := time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	return !now.After(pod.DeletionTimestamp.Add(grace))
}

// PodChanged tells whether a pod's update may change what it takes, or of which
// quota.
func PodChanged(old, pod *corev1.Pod, now time.Time) bool {
	return PodCounts(old, now) != PodCounts(pod, now) || terminating(old) != terminating(pod) ||
		pod.Generation != old.Generation || // resized
		!equality.Semantic.DeepEqual(pod.Status.Resources, old.Status.Resources) ||
		!equality.Semantic.DeepEqual(pod.Status.AllocatedResources, old.Status.AllocatedResources) ||
		resized(old.Status.ContainerStatuses, pod.Status.ContainerStatuses) ||
		resized(old.Status.InitContainerStatuses, pod.Status.InitContainerStatuses)
}

func resized(old, now []corev1.ContainerStatus) bool {
	for i := range now {
		at := slices.IndexFunc(old, func(s corev1.ContainerStatus) bool { return s.Name == now[i].Name })
		if at >= 0 && !equality.Semantic.DeepEqual(old[at].Resources, now[i].Resources) {
			return true
		}
	}
	return false
}

func podInScope(s corev1.ScopedResourceSelectorRequirement, pod *corev1.Pod) (bool, error) {
	switch s.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return terminating(pod), nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return !terminating(pod), nil
	case corev1.ResourceQuotaScopeBestEffort:
		return bestEffort(pod), nil
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort(pod), nil
	case corev1.ResourceQuotaScopePriorityClass:
		if pod.Spec.PriorityClassName == "" {
			return selects(s)
		}
		return selects(s, pod.Spec.PriorityClassName)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossesNamespaces(pod.Spec.Affinity), nil
	}
	return false, nil
}

func terminating(pod *corev1.Pod) bool {
	return pod.Spec.ActiveDeadlineSeconds != nil && *pod.Spec.ActiveDeadlineSeconds >= 0
}

// bestEffort is of pods that ask for neither CPU nor memory.
func bestEffort(pod *corev1.Pod) bool {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass == corev1.PodQOSBestEffort
	}
	if r := pod.Spec.Resources; r != nil {
		return !asks(r.Requests) && !asks(r.Limits)
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if asks(list[i].Resources.Requests) || asks(list[i].Resources.Limits) {
				return false
			}
		}
	}
	return true
}

func asks(list corev1.ResourceList) bool {
	return list.Cpu().Sign() > 0 || list.Memory().Sign() > 0
}

func crossesNamespaces(a *corev1.Affinity) bool {
	if a == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	add := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		terms = append(terms, required...)
		for i := range preferred {
			terms = append(terms, preferred[i].PodAffinityTerm)
		}
	}
	if p := a.PodAffinity; p != nil {
		add(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if p := a.PodAntiAffinity; p != nil {
		add(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return slices.ContainsFunc(terms,
		func(t corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil })
}
