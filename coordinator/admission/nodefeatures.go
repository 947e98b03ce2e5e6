package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/component-helpers/nodedeclaredfeatures"
)

// nodeFeatures refuses changes of a pod that its node does not declare to be able to
// make (KEP-5328).
type nodeFeatures struct{ nodeReader }

func newNodeFeatures() *nodeFeatures {
	return &nodeFeatures{nodeReader{Handler: admission.NewHandler(admission.Update)}}
}

// Validate compares what a change of a pod on a node asks for with the node's features.
func (p *nodeFeatures) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	part := a.GetSubresource()
	if a.GetResource().GroupResource() != corev1.Resource("pods") || part != "" && part != "resize" {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	old, was := a.GetOldObject().(*corev1.Pod)
	if !ok || !was || pod.Spec.NodeName == "" || pod.Generation == old.Generation ||
		len(pod.Spec.InitContainers) != len(old.Spec.InitContainers) { // which is refused elsewhere
		return nil
	}
	all := nodedeclaredfeatures.DefaultFramework
	asked, err := all.InferForPodUpdate(&nodedeclaredfeatures.PodInfo{Spec: &old.Spec, Status: &old.Status},
		&nodedeclaredfeatures.PodInfo{Spec: &pod.Spec, Status: &pod.Status}, version.MajorMinor(1, 36))
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("failed to infer pod capability requirements: %w", err))
	}
	if asked.IsEmpty() {
		return nil
	}
	if !p.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	node, err := p.node(a, pod)
	if err != nil {
		return err
	}
	match, err := all.MatchNode(asked, node)
	if err != nil {
		return admission.NewForbidden(a,
			fmt.Errorf("failed to match pod requirements against node %q: %w", node.Name, err))
	}
	if !match.IsMatch {
		return admission.NewForbidden(a, fmt.Errorf("pod update requires features %s which are not available on node %q",
			strings.Join(match.UnsatisfiedRequirements, ", "), node.Name))
	}
	return nil
}
