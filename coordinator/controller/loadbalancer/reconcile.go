package loadbalancer

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// patience is how long a load balancer may take.
const patience = time.Minute

type reconciler struct {
	services corelisters.ServiceLister
	events   record.EventRecorder
}

// New builds the controller; its keys are Services.
func New(env controller.Env) (*controller.Loop, error) {
	services := env.Informers.Core().V1().Services()
	loop := controller.New("load-balancer", 1, env.Log)
	loop.Reconciler = &reconciler{services: services.Lister(), events: env.Recorder("service-controller")}
	controller.Watch(loop, services.Informer(), func(old, s *corev1.Service) {
		if asks(old, s) {
			loop.AddAfter(controller.Key(s.Namespace, s.Name), patience)
		}
	})
	return loop, nil
}

// Reconcile tells of one Service that has waited long enough.
func (r *reconciler) Reconcile(_ context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	s, err := r.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if waits(s) {
		r.events.Event(s, corev1.EventTypeWarning, "NoLoadBalancer", message(s))
	}
	return 0, nil
}
