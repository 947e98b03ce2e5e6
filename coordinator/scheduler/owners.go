package scheduler

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// owners finds which pods belong with a pod, for the default spread.
type owners struct {
	services     corelisters.ServiceLister
	controllers  corelisters.ReplicationControllerLister
	replicaSets  appslisters.ReplicaSetLister
	statefulSets appslisters.StatefulSetLister
}

// selector joins the selectors of the Services that select the pod and of the
// workload that controls it. It is empty when there is none.
func (o *owners) selector(pod *corev1.Pod) labels.Selector {
	set := labels.Set{}
	services, err := o.services.Services(pod.Namespace).List(labels.Everything())
	if err == nil {
		for _, s := range services {
			if s.Spec.Selector != nil &&
				labels.Set(s.Spec.Selector).AsSelectorPreValidated().Matches(labels.Set(pod.Labels)) {
				set = labels.Merge(set, s.Spec.Selector)
			}
		}
	}
	sel := set.AsSelector()
	if more, err := metav1.LabelSelectorAsSelector(o.workload(pod)); err == nil {
		if reqs, ok := more.Requirements(); ok {
			sel = sel.Add(reqs...)
		}
	}
	return sel
}

// workload is the selector of what controls the pod; nil, which selects
// nothing, when that is unknown.
func (o *owners) workload(pod *corev1.Pod) *metav1.LabelSelector {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil {
		return nil
	}
	switch ref.Kind {
	case "ReplicaSet":
		if rs, err := o.replicaSets.ReplicaSets(pod.Namespace).Get(ref.Name); err == nil {
			return rs.Spec.Selector
		}
	case "StatefulSet":
		if set, err := o.statefulSets.StatefulSets(pod.Namespace).Get(ref.Name); err == nil {
			return set.Spec.Selector
		}
	case "ReplicationController":
		if rc, err := o.controllers.ReplicationControllers(pod.Namespace).Get(ref.Name); err == nil {
			return &metav1.LabelSelector{MatchLabels: rc.Spec.Selector}
		}
	}
	return nil
}
