package admission

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// topologyLabels tells a pod the zone and region of its node, in labels of its own
// (KEP-4742): of a binding, whose labels become the pod's, and of a pod that is
// created on a node.
type topologyLabels struct {
	*admission.Handler
	nodes corelisters.NodeLister
}

func newTopologyLabels() *topologyLabels {
	return &topologyLabels{Handler: admission.NewHandler(admission.Create)}
}

// SetExternalKubeInformerFactory takes the informer of nodes.
func (p *topologyLabels) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	p.nodes = f.Core().V1().Nodes().Lister()
	p.SetReadyFunc(f.Core().V1().Nodes().Informer().HasSynced)
}

// ValidateInitialization says what is missing.
func (p *topologyLabels) ValidateInitialization() error {
	if p.nodes == nil {
		return fmt.Errorf("no informers")
	}
	return nil
}

// Admit adds the labels, over others of their names.
func (p *topologyLabels) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("pods") {
		return nil
	}
	switch o := a.GetObject().(type) {
	case *corev1.Binding:
		if a.GetSubresource() == "binding" && o.Target.Kind == "Node" {
			return p.add(a, &o.Labels, o.Target.Name)
		}
	case *corev1.Pod:
		if a.GetSubresource() == "" && o.Spec.NodeName != "" {
			return p.add(a, &o.Labels, o.Spec.NodeName)
		}
	}
	return nil
}

func (p *topologyLabels) add(a admission.Attributes, to *map[string]string, nodeName string) error {
	if !p.WaitForReady() {
		return admission.NewForbidden(a, fmt.Errorf("not yet ready to handle request"))
	}
	node, err := p.nodes.Get(nodeName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	labels := maps.Clone(*to)
	if labels == nil {
		labels = map[string]string{}
	}
	for _, name := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		if value, ok := node.Labels[name]; ok {
			labels[name] = value
		}
	}
	if len(labels) > 0 {
		*to = labels
	}
	return nil
}
