package endpointslicemirroring

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

type reconciler struct {
	client    kubernetes.Interface
	events    record.EventRecorder
	services  corelisters.ServiceLister
	endpoints corelisters.EndpointsLister
	slicesOf  func(namespace, service string) []*discoveryv1.EndpointSlice
}

// New builds the controller; its keys are Endpoints, which have their Service's
// name.
func New(env controller.Env) (*controller.Loop, error) {
	core, slices := env.Informers.Core().V1(), env.Informers.Discovery().V1().EndpointSlices()
	slicesOf, err := controller.SlicesOf(slices.Informer(), managedBy)
	if err != nil {
		return nil, err
	}
	loop := controller.New("endpointslicemirroring", 2, env.Log)
	loop.Reconciler = &reconciler{
		client: env.Client, events: env.Recorder("endpoint-slice-mirroring-controller"),
		services: core.Services().Lister(), endpoints: core.Endpoints().Lister(), slicesOf: slicesOf,
	}
	loop.WatchKeys(core.Endpoints().Informer())
	controller.Watch(loop, core.Services().Informer(), func(old, s *corev1.Service) {
		if s == nil {
			s = old
		} else if old != nil && (old.Spec.Selector == nil) == (s.Spec.Selector == nil) {
			return
		}
		loop.Add(controller.Key(s.Namespace, s.Name))
	})
	controller.Watch(loop, slices.Informer(), func(old, s *discoveryv1.EndpointSlice) {
		if s == nil {
			s = old
		}
		if s.Labels[discoveryv1.LabelManagedBy] == managedBy {
			loop.Add(controller.Key(s.Namespace, s.Labels[discoveryv1.LabelServiceName]))
		}
	})
	return loop, nil
}

// Reconcile brings the slices of one Endpoints object up to date.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	e, err := r.endpoints.Endpoints(namespace).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	service, err := r.services.Services(namespace).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	var m mirror
	if mirrored(e, service) {
		if m, err = plan(e); err != nil {
			return 0, err
		}
		r.tell(e, m)
	}
	return 0, r.apply(ctx, namespace, r.slicesOf(namespace, name), m.slices)
}

func (r *reconciler) tell(e *corev1.Endpoints, m mirror) {
	if m.invalid > 0 {
		r.events.Eventf(e, corev1.EventTypeWarning, "InvalidIPAddress",
			"Skipped %d invalid IP addresses when mirroring to EndpointSlices", m.invalid)
	}
	if m.skipped > 0 {
		r.events.Eventf(e, corev1.EventTypeWarning, "TooManyAddressesToMirror",
			"A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped",
			perSubset, m.skipped)
	}
}

func (r *reconciler) apply(ctx context.Context, namespace string, have, want []*discoveryv1.EndpointSlice) error {
	byName := make(map[string]*discoveryv1.EndpointSlice, len(have))
	for _, s := range have {
		byName[s.Name] = s
	}
	client := r.client.DiscoveryV1().EndpointSlices(namespace)
	var errs []error
	for _, w := range want {
		h := byName[w.Name]
		delete(byName, w.Name)
		if h == nil {
			_, err := client.Create(ctx, w, metav1.CreateOptions{})
			if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				errs = append(errs, err)
			}
			continue
		}
		if same(h, w) {
			continue
		}
		w.ResourceVersion = h.ResourceVersion
		_, err := client.Update(ctx, w, metav1.UpdateOptions{})
		errs = append(errs, err)
	}
	for name := range byName {
		if err := client.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func same(a, b *discoveryv1.EndpointSlice) bool {
	eq := equality.Semantic.DeepEqual
	return eq(a.Endpoints, b.Endpoints) && eq(a.Ports, b.Ports) && eq(a.Labels, b.Labels) &&
		eq(a.Annotations, b.Annotations)
}
