package apiaddress

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// api is the Service whose slices say where the API is served.
const api = "kubernetes"

type reconciler struct {
	client   kubernetes.Interface
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	nodes    corelisters.NodeLister
	address  netip.Addr
}

// New builds the controller for the API's virtual address; its only key is that.
func New(env controller.Env, address netip.Addr) (*controller.Loop, error) {
	core, discovery := env.Informers.Core().V1(), env.Informers.Discovery().V1()
	key := address.String()
	loop := controller.New("api-address", 1, env.Log)
	loop.Reconciler = &reconciler{
		client:   env.Client,
		services: core.Services().Lister(),
		slices:   discovery.EndpointSlices().Lister(),
		nodes:    core.Nodes().Lister(),
		address:  address,
	}
	controller.Watch(loop, core.Nodes().Informer(), func(old, n *corev1.Node) {
		if old == nil || n == nil || !equality.Semantic.DeepEqual(old.Status.Addresses, n.Status.Addresses) {
			loop.Add(key)
		}
	})
	controller.Watch(loop, core.Services().Informer(), func(old, s *corev1.Service) {
		if s == nil {
			s = old
		}
		if s.Namespace == Namespace && s.Name == Name {
			loop.Add(key)
		}
	})
	controller.Watch(loop, discovery.EndpointSlices().Informer(), func(old, s *discoveryv1.EndpointSlice) {
		if s == nil {
			s = old
		}
		if isAPI(s) || s.Namespace == Namespace && s.Name == Name {
			loop.Add(key)
		}
	})
	loop.Add(key)
	return loop, nil
}

func isAPI(s *discoveryv1.EndpointSlice) bool {
	return s.Namespace == metav1.NamespaceDefault && s.Labels[discoveryv1.LabelServiceName] == api
}

// Reconcile brings the Service and its slice to what they are to be. Without a coordinator
// on a node they stay as they are.
func (r *reconciler) Reconcile(ctx context.Context, _ string) (time.Duration, error) {
	served, err := r.slices.EndpointSlices(metav1.NamespaceDefault).List(
		labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: api}))
	if err != nil {
		return 0, err
	}
	nodes, err := r.nodes.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	family, _ := familyOf(r.address)
	list, port := backends(served, nodes, family)
	if len(list) == 0 {
		return 0, nil
	}
	if err := r.ensureService(ctx, port); err != nil {
		return 0, fmt.Errorf("service %s/%s: %w", Namespace, Name, err)
	}
	if err := r.ensureSlice(ctx, endpointSlice(list, port, family)); err != nil {
		return 0, fmt.Errorf("endpoints of %s/%s: %w", Namespace, Name, err)
	}
	return 0, nil
}

func (r *reconciler) ensureService(ctx context.Context, port int32) error {
	services := r.client.CoreV1().Services(Namespace)
	have, err := r.services.Services(Namespace).Get(Name)
	if apierrors.IsNotFound(err) { // perhaps it was made a moment ago
		have, err = services.Get(ctx, Name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		_, err = services.Create(ctx, service(nil, r.address, port), metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	next := service(have, r.address, port)
	if equality.Semantic.DeepEqual(have, next) {
		return nil
	}
	_, err = services.Update(ctx, next, metav1.UpdateOptions{})
	return err
}

func (r *reconciler) ensureSlice(ctx context.Context, want *discoveryv1.EndpointSlice) error {
	all := r.client.DiscoveryV1().EndpointSlices(Namespace)
	have, err := r.slices.EndpointSlices(Namespace).Get(Name)
	if apierrors.IsNotFound(err) {
		have, err = all.Get(ctx, Name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		_, err = all.Create(ctx, want, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	if have.AddressType != want.AddressType { // it cannot be changed
		return all.Delete(ctx, Name, metav1.DeleteOptions{})
	}
	same := equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) &&
		equality.Semantic.DeepEqual(have.Ports, want.Ports) &&
		have.Labels[discoveryv1.LabelServiceName] == Name
	if same {
		return nil
	}
	next := have.DeepCopy()
	next.Labels, next.Endpoints, next.Ports = want.Labels, want.Endpoints, want.Ports
	_, err = all.Update(ctx, next, metav1.UpdateOptions{})
	return err
}
