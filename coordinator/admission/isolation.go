package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shoal-project/shoal/agent/fence"
)

// isolationPolicy gives pods the cluster's policy for when their node is isolated, and
// refuses values that mean nothing. A pod keeps its policy: a node that is cut off would
// not hear of another one, and the coordinator would reckon with it.
type isolationPolicy struct {
	*admission.Handler
	// standard is what pods get that name none; Stay is not written.
	standard fence.Policy
}

func newIsolationPolicy(standard fence.Policy) *isolationPolicy {
	return &isolationPolicy{admission.NewHandler(admission.Create, admission.Update), standard}
}

var (
	_ admission.MutationInterface   = &isolationPolicy{}
	_ admission.ValidationInterface = &isolationPolicy{}
)

// Admit adds the annotation where it is missing.
func (p *isolationPolicy) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil || a.GetOperation() != admission.Create || p.standard == "" || p.standard == fence.Stay {
		return nil
	}
	_, given := pod.Annotations[fence.PolicyAnnotation]
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	if given || mirror {
		return nil
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[fence.PolicyAnnotation] = string(p.standard)
	return nil
}

// Validate looks at every way to change a pod's annotations, those of its subresources
// too.
func (p *isolationPolicy) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("pods") {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return nil
	}
	value, given := pod.Annotations[fence.PolicyAnnotation]
	if old, ok := a.GetOldObject().(*corev1.Pod); ok && a.GetOperation() == admission.Update {
		if was, had := old.Annotations[fence.PolicyAnnotation]; was != value || had != given {
			return forbid(a, "annotation %s of a pod cannot be changed: make a new pod", fence.PolicyAnnotation)
		}
		return nil
	}
	if !given {
		return nil
	}
	if _, err := fence.ParsePolicy(value); err != nil {
		return forbid(a, "annotation %s: %w", fence.PolicyAnnotation, err)
	}
	return nil
}
