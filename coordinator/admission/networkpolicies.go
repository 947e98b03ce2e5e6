package admission

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// idlePolicies warns who makes a network policy where no node enforces any by itself. A
// third party's network may: nobody tells.
type idlePolicies struct {
	*admission.Handler
	idle func() bool
}

func newIdlePolicies(idle func() bool) *idlePolicies {
	return &idlePolicies{admission.NewHandler(admission.Create), idle}
}

var _ admission.ValidationInterface = &idlePolicies{}

const noEffect = "no node of this cluster enforces network policies by itself: unless the network plugin does, this one has " +
	"no effect"

// Validate refuses nothing.
func (p *idlePolicies) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	switch a.GetResource().GroupResource() {
	case schema.GroupResource{Group: "networking.k8s.io", Resource: "networkpolicies"},
		networkpolicy.Resource("clusternetworkpolicies"):
	default:
		return nil
	}
	if a.GetSubresource() == "" && p.idle != nil && p.idle() {
		warning.AddWarning(ctx, "", noEffect)
	}
	return nil
}
