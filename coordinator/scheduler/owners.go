package scheduler

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// owners finds which pods belong with a pod, for the default spread.
type owners struct {
	services    corelisters.ServiceLister
	replicaSets appslisters.ReplicaSetLister
}

// selector joins the selectors of the Services that select the pod and of the
// ReplicaSet that controls it. It is empty when there is none.
func (o *owners) selector(pod *v1.Pod) labels.Selector {
	set := labels.Set{}
	services, err := o.services.Services(pod.Namespace).List(labels.Everything())
	if err == nil {
		for _, s := range services {
			if s.Spec.Selector != nil && labels.Set(s.Spec.Selector).AsSelectorPreValidated().Matches(labels.Set(pod.Labels)) {
				set = labels.Merge(set, s.Spec.Selector)
			}
		}
	}
	sel := set.AsSelector()
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil || ref.Kind != "ReplicaSet" {
		return sel
	}
	rs, err := o.replicaSets.ReplicaSets(pod.Namespace).Get(ref.Name)
	if err != nil {
		return sel
	}
	if more, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector); err == nil {
		if reqs, ok := more.Requirements(); ok {
			sel = sel.Add(reqs...)
		}
	}
	return sel
}
