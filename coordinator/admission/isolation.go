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
// too, of which a binding brings annotations of its own.
func (p *isolationPolicy) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	switch o := a.GetObject().(type) {
	case *corev1.Binding:
		for _, key := range []string{fence.PolicyAnnotation, fence.SourceAnnotation, corev1.MirrorPodAnnotationKey} {
			if _, given := o.Annotations[key]; given {
				return forbid(a, "a binding cannot give a pod the annotation %s", key)
			}
		}
	case *corev1.Pod:
		if a.GetResource().GroupResource() != corev1.Resource("pods") {
			return nil
		}
		if old, ok := a.GetOldObject().(*corev1.Pod); ok && a.GetOperation() == admission.Update {
			return policyStays(a, o, old)
		}
		return policyIsValid(a, o)
	}
	return nil
}

// policyStays looks at the policy itself too: it also depends on where a pod is from.
func policyStays(a admission.Attributes, pod, old *corev1.Pod) error {
	value, given := pod.Annotations[fence.PolicyAnnotation]
	if was, had := old.Annotations[fence.PolicyAnnotation]; was != value || had != given {
		return forbid(a, "annotation %s of a pod cannot be changed: make a new pod", fence.PolicyAnnotation)
	}
	if fence.PolicyOf(pod) != fence.PolicyOf(old) {
		return forbid(a, "annotation %s cannot be changed: the pod's %s depends on it",
			fence.SourceAnnotation, fence.PolicyAnnotation)
	}
	return nil
}

func policyIsValid(a admission.Attributes, pod *corev1.Pod) error {
	value, given := pod.Annotations[fence.PolicyAnnotation]
	if !given {
		return nil
	}
	policy, err := fence.ParsePolicy(value)
	if err != nil {
		return forbid(a, "annotation %s: %w", fence.PolicyAnnotation, err)
	}
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	if _, source := pod.Annotations[fence.SourceAnnotation]; source && !mirror && policy != fence.Stay {
		return forbid(a, "annotation %s: %s would have no effect: annotation %s is for pods of a node's manifests",
			fence.PolicyAnnotation, policy, fence.SourceAnnotation)
	}
	return nil
}
