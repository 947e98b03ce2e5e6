package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// taintNodes gives each new Node the taint not-ready:NoSchedule (upstream's
// TaintNodesByCondition), so that no pod is placed there before the node
// lifecycle controller has seen it Ready.
type taintNodes struct{ *admission.Handler }

func newTaintNodes() *taintNodes {
	return &taintNodes{admission.NewHandler(admission.Create)}
}

var _ admission.MutationInterface = &taintNodes{}

// Admit adds the taint where it is missing.
func (p *taintNodes) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("nodes") || a.GetSubresource() != "" {
		return nil
	}
	node, ok := a.GetObject().(*corev1.Node)
	if !ok {
		return nil
	}
	taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	has := func(t corev1.Taint) bool { return t.Key == taint.Key && t.Effect == taint.Effect }
	if !slices.ContainsFunc(node.Spec.Taints, has) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
	return nil
}
