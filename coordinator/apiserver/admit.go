package apiserver

import (
	"context"

	"k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
)

// admissionChain runs the plugins in order, and the mutating ones a second time
// when a webhook that asks for it saw an object that later plugins changed.
type admissionChain struct {
	admission.Interface
	mutate   admission.MutationInterface
	validate admission.ValidationInterface
}

func newAdmissionChain(plugins []admission.Interface) admission.Interface {
	if len(plugins) == 0 {
		return nil
	}
	c := admission.NewChainHandler(plugins...)
	return admissionmetrics.WithStepMetrics(admissionChain{Interface: c, mutate: c, validate: c})
}

func (c admissionChain) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := c.mutate.Admit(ctx, a, o); err != nil {
		return err
	}
	again := a.GetReinvocationContext()
	if !again.ShouldReinvoke() {
		return nil
	}
	again.SetIsReinvoke()
	return c.mutate.Admit(ctx, a, o)
}

func (c admissionChain) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return c.validate.Validate(ctx, a, o)
}
