package policystatus

import (
	"context"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyadmissionregistrationv1 "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/client-go/kubernetes"
	admissionlisters "k8s.io/client-go/listers/admissionregistration/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// name is the controller's, and the owner of the fields that it writes.
const name = "validatingadmissionpolicy-status"

// Checker finds what is wrong with a policy's expressions
// (*validating.TypeChecker).
type Checker interface {
	Check(*admissionregistrationv1.ValidatingAdmissionPolicy) []admissionregistrationv1.ExpressionWarning
}

type reconciler struct {
	client   kubernetes.Interface
	policies admissionlisters.ValidatingAdmissionPolicyLister
	checker  Checker
}

// New builds the controller; its keys are policies.
func New(env controller.Env, checker Checker) (*controller.Loop, error) {
	policies := env.Informers.Admissionregistration().V1().ValidatingAdmissionPolicies()
	loop := controller.New(name, 1, env.Log)
	loop.Reconciler = &reconciler{client: env.Client, policies: policies.Lister(), checker: checker}
	controller.Watch(loop, policies.Informer(), func(_, p *admissionregistrationv1.ValidatingAdmissionPolicy) {
		if p != nil && !checked(p) {
			loop.Add(p.Name)
		}
	})
	return loop, nil
}

// checked tells whether a policy's status is of what it says now.
func checked(p *admissionregistrationv1.ValidatingAdmissionPolicy) bool {
	return p.Generation <= p.Status.ObservedGeneration
}

// Reconcile checks one policy.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	policy, err := r.policies.Get(key)
	if err != nil {
		return 0, controller.IgnoreGone(err)
	}
	if checked(policy) {
		return 0, nil
	}
	found := applyadmissionregistrationv1.TypeChecking()
	for _, w := range r.checker.Check(policy) {
		found.WithExpressionWarnings(
			applyadmissionregistrationv1.ExpressionWarning().WithFieldRef(w.FieldRef).WithWarning(w.Warning))
	}
	_, err = r.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().ApplyStatus(ctx,
		applyadmissionregistrationv1.ValidatingAdmissionPolicy(policy.Name).WithStatus(
			applyadmissionregistrationv1.ValidatingAdmissionPolicyStatus().
				WithObservedGeneration(policy.Generation).
				WithTypeChecking(found)),
		metav1.ApplyOptions{FieldManager: name, Force: true})
	return 0, controller.IgnoreGone(err)
}
