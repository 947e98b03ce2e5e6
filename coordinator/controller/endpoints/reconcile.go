package endpoints

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice/util"

	"github.com/shoal-project/shoal/coordinator/controller"
)

type reconciler struct {
	client    kubernetes.Interface
	events    record.EventRecorder
	services  corelisters.ServiceLister
	pods      corelisters.PodLister
	endpoints corelisters.EndpointsLister
	triggers  *util.TriggerTimeTracker
	loop      *controller.Loop
}

// New builds the controller; its keys are Services.
func New(env controller.Env) (*controller.Loop, error) {
	core := env.Informers.Core().V1()
	r := &reconciler{
		client: env.Client, events: env.Recorder("endpoint-controller"),
		services: core.Services().Lister(), pods: core.Pods().Lister(), endpoints: core.Endpoints().Lister(),
		triggers: util.NewTriggerTimeTracker(), loop: controller.New("endpoints", 3, env.Log),
	}
	r.loop.Reconciler = r
	r.loop.WatchKeys(core.Services().Informer())
	controller.WatchSelected(r.loop, core.Pods().Informer(), r.services)
	controller.Watch(r.loop, core.Endpoints().Informer(), func(old, e *corev1.Endpoints) {
		if e == nil {
			r.loop.Add(controller.Key(old.Namespace, old.Name))
		} else if old == nil && e.Labels[managedByLabel] == managedBy {
			r.loop.Add(controller.Key(e.Namespace, e.Name)) // its Service may be gone
		}
	})
	return r.loop, nil
}

// Reconcile brings one Service's Endpoints up to date, or deletes them after it.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	service, err := r.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		r.triggers.DeleteService(namespace, name)
		return 0, r.delete(ctx, namespace, name)
	} else if err != nil {
		return 0, err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName || service.Spec.Selector == nil {
		return 0, nil
	}
	pods, err := r.pods.Pods(namespace).List(labels.SelectorFromSet(service.Spec.Selector))
	if err != nil {
		return 0, err
	}
	have, err := r.endpoints.Endpoints(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		have = &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	} else if err != nil {
		return 0, err
	}
	want := have.DeepCopy()
	want.Subsets, want.Labels = subsets(service, pods), labelsOf(service)
	delete(want.Annotations, corev1.EndpointsOverCapacity)
	if truncate(want.Subsets) {
		metav1.SetMetaDataAnnotation(&want.ObjectMeta, corev1.EndpointsOverCapacity, truncated)
	}
	trigger := r.triggers.ComputeEndpointLastChangeTriggerTime(namespace, service, pods)
	if have.ResourceVersion != "" && equality.Semantic.DeepEqual(have.Subsets, want.Subsets) &&
		equality.Semantic.DeepEqual(have.Labels, want.Labels) &&
		have.Annotations[corev1.EndpointsOverCapacity] == want.Annotations[corev1.EndpointsOverCapacity] {
		return 0, nil
	}
	delete(want.Annotations, corev1.EndpointsLastChangeTriggerTime)
	if !trigger.IsZero() {
		metav1.SetMetaDataAnnotation(&want.ObjectMeta, corev1.EndpointsLastChangeTriggerTime,
			trigger.UTC().Format(time.RFC3339Nano))
	}
	return 0, r.write(ctx, want)
}

// delete removes the Endpoints of a Service that is gone, unless they have
// another use.
func (r *reconciler) delete(ctx context.Context, namespace, name string) error {
	e, err := r.endpoints.Endpoints(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && e.Annotations["control-plane.alpha.kubernetes.io/leader"] != "" {
		return nil
	} else if err != nil {
		return err
	}
	err = r.client.CoreV1().Endpoints(namespace).Delete(ctx, name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &e.UID}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (r *reconciler) write(ctx context.Context, want *corev1.Endpoints) error {
	var err error
	client := r.client.CoreV1().Endpoints(want.Namespace)
	reason, message := "FailedToCreateEndpoint", "Failed to create endpoint for service %v/%v: %v"
	if want.ResourceVersion == "" {
		_, err = client.Create(ctx, want, metav1.CreateOptions{})
	} else {
		reason, message = "FailedToUpdateEndpoint", "Failed to update endpoint %v/%v: %v"
		_, err = client.Update(ctx, want, metav1.UpdateOptions{})
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		r.events.Eventf(want, corev1.EventTypeWarning, reason, message, want.Namespace, want.Name, err)
	}
	return err
}
