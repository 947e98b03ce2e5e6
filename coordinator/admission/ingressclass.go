package admission

import (
	"context"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
)

// defaultIngressClass gives a new Ingress the default class (ING-24, ING-25).
type defaultIngressClass struct {
	*admission.Handler
	lister networkinglisters.IngressClassLister
}

func newDefaultIngressClass() *defaultIngressClass {
	return &defaultIngressClass{Handler: admission.NewHandler(admission.Create)}
}

// SetExternalKubeInformerFactory takes the informer of classes.
func (d *defaultIngressClass) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	d.lister = f.Networking().V1().IngressClasses().Lister()
	d.SetReadyFunc(f.Networking().V1().IngressClasses().Informer().HasSynced)
}

// ValidateInitialization says what is missing.
func (d *defaultIngressClass) ValidateInitialization() error {
	if d.lister == nil {
		return fmt.Errorf("no informers")
	}
	return nil
}

// Admit sets spec.ingressClassName; an Ingress that names a class in either way
// keeps it.
func (d *defaultIngressClass) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != networkingv1.Resource("ingresses") || a.GetSubresource() != "" {
		return nil
	}
	ingress, ok := a.GetObject().(*networkingv1.Ingress)
	if !ok || ingress.Spec.IngressClassName != nil {
		return nil
	}
	if _, ok := ingress.Annotations["kubernetes.io/ingress.class"]; ok {
		return nil
	}
	list, err := d.lister.List(labels.Everything())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if class := newestDefaultClass(list); class != nil {
		name := class.Name
		ingress.Spec.IngressClassName = &name
	}
	return nil
}

// newestDefaultClass returns the default that was made last, the first by name
// of those made in one second.
func newestDefaultClass(list []*networkingv1.IngressClass) *networkingv1.IngressClass {
	var found *networkingv1.IngressClass
	for _, c := range list {
		if c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] != "true" {
			continue
		}
		if found == nil || found.CreationTimestamp.Before(&c.CreationTimestamp) ||
			found.CreationTimestamp.Equal(&c.CreationTimestamp) && c.Name < found.Name {
			found = c
		}
	}
	return found
}
