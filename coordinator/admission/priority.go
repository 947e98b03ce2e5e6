package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"
	"k8s.io/utils/ptr"
)

// priority turns a pod's priority class into a number.
type priority struct {
	*admission.Handler
	client kubernetes.Interface
	lister schedulinglisters.PriorityClassLister
}

func newPriority() *priority {
	return &priority{Handler: admission.NewHandler(admission.Create, admission.Update)}
}

// SetExternalKubeClientSet and the next two implement the initializer's interfaces.
func (p *priority) SetExternalKubeClientSet(client kubernetes.Interface) { p.client = client }

// SetExternalKubeInformerFactory takes the informer of priority classes.
func (p *priority) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	p.lister = f.Scheduling().V1().PriorityClasses().Lister()
	p.SetReadyFunc(f.Scheduling().V1().PriorityClasses().Informer().HasSynced)
}

// ValidateInitialization says what is missing.
func (p *priority) ValidateInitialization() error {
	if p.client == nil || p.lister == nil {
		return fmt.Errorf("no client or informers")
	}
	return nil
}

// Admit sets the priority of a new pod and keeps that of an old one.
func (p *priority) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	if a.GetOperation() == admission.Update {
		if old, ok := a.GetOldObject().(*corev1.Pod); ok {
			keepPriority(&pod.Spec, &old.Spec)
		}
		return nil
	}
	class, err := p.class(ctx, a, pod.Spec.PriorityClassName)
	if err != nil {
		return err
	}
	if v := pod.Spec.Priority; v != nil && *v != class.Value {
		return forbid(a,
			"the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name",
			*v, class.Value)
	}
	if v := pod.Spec.PreemptionPolicy; v != nil && class.PreemptionPolicy != nil && *v != *class.PreemptionPolicy {
		return forbid(a,
			"the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name",
			*v, *class.PreemptionPolicy)
	}
	pod.Spec.PriorityClassName = class.Name
	pod.Spec.Priority = &class.Value
	if class.PreemptionPolicy != nil {
		pod.Spec.PreemptionPolicy = ptr.To(*class.PreemptionPolicy)
	}
	return nil
}

func keepPriority(spec, old *corev1.PodSpec) {
	if spec.Priority == nil {
		spec.Priority = old.Priority
	}
	if spec.PreemptionPolicy == nil {
		spec.PreemptionPolicy = old.PreemptionPolicy
	}
}

// Validate lets one class at most be the default.
func (p *priority) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != schedulingv1.Resource("priorityclasses") || a.GetSubresource() != "" {
		return nil
	}
	class, ok := a.GetObject().(*schedulingv1.PriorityClass)
	if !ok || !class.GlobalDefault {
		return nil
	}
	current, err := p.defaultClass()
	if err != nil {
		return fmt.Errorf("failed to get default priority class: %w", err)
	}
	if current != nil && (a.GetOperation() == admission.Create || current.Name != class.Name) {
		return forbid(a, "PriorityClass %v is already marked as default. Only one default can exist", current.Name)
	}
	return nil
}

// class returns a copy that is safe to keep parts of.
func (p *priority) class(ctx context.Context, a admission.Attributes, name string) (schedulingv1.PriorityClass, error) {
	if name == "" {
		class, err := p.defaultClass()
		if err != nil {
			return schedulingv1.PriorityClass{},
				fmt.Errorf("error occurred while retrieving default priority class: %w", err)
		}
		if class == nil {
			return schedulingv1.PriorityClass{PreemptionPolicy: ptr.To(corev1.PreemptLowerPriority)}, nil
		}
		return *class, nil
	}
	class, err := p.lister.Get(name)
	// A client does not ask for a name that cannot be in a path.
	if apierrors.IsNotFound(err) && len(path.IsValidPathSegmentName(name)) == 0 {
		class, err = p.client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return schedulingv1.PriorityClass{}, forbid(a, "no PriorityClass with name %v was found", name)
	}
	if err != nil {
		return schedulingv1.PriorityClass{}, fmt.Errorf("failed to resolve PriorityClass with name %s: %w", name, err)
	}
	return *class, nil
}

// defaultClass is the lowest should there be several.
func (p *priority) defaultClass() (*schedulingv1.PriorityClass, error) {
	classes, err := p.lister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var found *schedulingv1.PriorityClass
	for _, c := range classes {
		if c.GlobalDefault && (found == nil || c.Value < found.Value) {
			found = c
		}
	}
	return found, nil
}
