package gatewaystream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/shoal-project/shoal/coordinator/gateway"
)

// Lead writes what plans say until ctx ends: only one coordinator does.
func (h *Hub) Lead(ctx context.Context) error {
	var retry, arrived <-chan time.Time
	var p pace
	l := newLeader(h)
	defer l.events.Shutdown()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(p.wait()):
		}
		h.mu.Lock()
		plan, changed, known, followed := h.plan, h.changed, h.told != nil, h.known
		h.mu.Unlock()
		if known {
			retry = nil
			began := time.Now()
			if err := l.write(ctx, plan, followed); err != nil && ctx.Err() == nil {
				if !apierrors.IsConflict(err) {
					h.log.Warn("what became of Gateways is not written yet, trying on", "err", err)
				}
				retry = time.After(again)
			}
			p.done(began)
			if arrived = nil; !l.due.IsZero() {
				arrived = time.After(time.Until(l.due))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-arrived:
		case <-retry:
			h.poke() // from what there is now
		}
	}
}

// write makes the API have what a plan says; nil: nobody asked for anything.
func (l *leader) write(ctx context.Context, p *gateway.Plan, known map[string]cache.SharedIndexInformer) error {
	l.due = time.Time{}
	if p == nil {
		return l.clean(ctx, nil)
	}
	h := l.Hub
	g := h.cfg.Gateways.GatewayV1()
	l.tellInvalid(p)
	errs := []error{l.services(ctx, p), h.clean(ctx, p)}
	errs = append(errs,
		statuses(ctx, known[classes], p.Classes, func(o *gatewayv1.GatewayClass) any { return &o.Status },
			func(*gatewayv1.GatewayClass) updater[*gatewayv1.GatewayClass] { return g.GatewayClasses() }),
		statuses(ctx, known["gateways"], p.Gateways, func(o *gatewayv1.Gateway) any { return &o.Status },
			func(o *gatewayv1.Gateway) updater[*gatewayv1.Gateway] { return g.Gateways(o.Namespace) }),
		statuses(ctx, known["listenersets"], p.Sets, func(o *gatewayv1.ListenerSet) any { return &o.Status },
			func(o *gatewayv1.ListenerSet) updater[*gatewayv1.ListenerSet] { return g.ListenerSets(o.Namespace) }),
		statuses(ctx, known["httproutes"], p.HTTP, func(o *gatewayv1.HTTPRoute) any { return &o.Status },
			func(o *gatewayv1.HTTPRoute) updater[*gatewayv1.HTTPRoute] { return g.HTTPRoutes(o.Namespace) }),
		statuses(ctx, known["grpcroutes"], p.GRPC, func(o *gatewayv1.GRPCRoute) any { return &o.Status },
			func(o *gatewayv1.GRPCRoute) updater[*gatewayv1.GRPCRoute] { return g.GRPCRoutes(o.Namespace) }),
		statuses(ctx, known["tlsroutes"], p.TLS, func(o *gatewayv1.TLSRoute) any { return &o.Status },
			func(o *gatewayv1.TLSRoute) updater[*gatewayv1.TLSRoute] { return g.TLSRoutes(o.Namespace) }),
		statuses(ctx, known["tcproutes"], p.TCP, func(o *gatewayv1.TCPRoute) any { return &o.Status },
			func(o *gatewayv1.TCPRoute) updater[*gatewayv1.TCPRoute] { return g.TCPRoutes(o.Namespace) }),
		statuses(ctx, known["udproutes"], p.UDP, func(o *gatewayv1.UDPRoute) any { return &o.Status },
			func(o *gatewayv1.UDPRoute) updater[*gatewayv1.UDPRoute] { return g.UDPRoutes(o.Namespace) }),
		statuses(ctx, known["backendtlspolicies"], p.Policies,
			func(o *gatewayv1.BackendTLSPolicy) any { return &o.Status },
			func(o *gatewayv1.BackendTLSPolicy) updater[*gatewayv1.BackendTLSPolicy] {
				return g.BackendTLSPolicies(o.Namespace)
			}),
		statuses(ctx, h.cfg.Informers.Networking().V1().Ingresses().Informer(), p.Ingresses,
			func(o *networkingv1.Ingress) any { return &o.Status },
			func(o *networkingv1.Ingress) updater[*networkingv1.Ingress] {
				return h.cfg.Client.NetworkingV1().Ingresses(o.Namespace)
			}))
	return errors.Join(errs...)
}

type updater[T any] interface {
	UpdateStatus(context.Context, T, metav1.UpdateOptions) (T, error)
}

// statuses writes those that are not as the informer has them.
func statuses[T metav1.Object](ctx context.Context, i cache.SharedIndexInformer, all []T, status func(T) any,
	to func(T) updater[T]) error {
	if i == nil {
		return nil
	}
	var errs []error
	for _, o := range all {
		known, there, err := i.GetStore().GetByKey(cache.MetaObjectToName(o).String())
		if err != nil || !there {
			continue
		}
		if have, ok := known.(T); ok && (have.GetUID() != o.GetUID() || equality.Semantic.DeepEqual(status(have),
			status(o))) {
			continue
		}
		if _, err := to(o).UpdateStatus(ctx, o, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("status of %s: %w", cache.MetaObjectToName(o), err))
		}
	}
	return errors.Join(errs...)
}

// services makes those of the plan, with their endpoints.
func (l *leader) services(ctx context.Context, p *gateway.Plan) error {
	var errs []error
	defer l.arrivals.begin()()
	for _, w := range p.Services {
		if err := l.service(ctx, w); err != nil {
			errs = append(errs, fmt.Errorf("service %s/%s: %w", w.Service.Namespace, w.Service.Name, err))
			continue
		}
		if err := l.endpoints(ctx, w); err != nil {
			errs = append(errs, fmt.Errorf("endpoints of %s/%s: %w", w.Service.Namespace, w.Service.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (h *Hub) service(ctx context.Context, w *gateway.Wanted) error {
	services := h.cfg.Client.CoreV1().Services(w.Service.Namespace)
	known := w.Known
	if known == nil {
		_, err := services.Create(ctx, w.Service, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return errors.New("there is one that is not a Gateway's")
		}
		return err
	}
	next := known.DeepCopy()
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	maps.Copy(next.Labels, w.Service.Labels)
	maps.Copy(next.Annotations, w.Service.Annotations)
	next.OwnerReferences = w.Service.OwnerReferences
	next.Spec.Type, next.Spec.ExternalTrafficPolicy = w.Service.Spec.Type, w.Service.Spec.ExternalTrafficPolicy
	next.Spec.LoadBalancerIP, next.Spec.Selector = w.Service.Spec.LoadBalancerIP, nil
	ports := slices.Clone(w.Service.Spec.Ports)
	for i := range ports { // the numbers that the API gave stay
		for _, p := range known.Spec.Ports {
			if p.Port == ports[i].Port && p.Protocol == ports[i].Protocol {
				ports[i].NodePort = p.NodePort
			}
		}
	}
	next.Spec.Ports = ports
	if equality.Semantic.DeepEqual(known, next) {
		return nil
	}
	_, err := services.Update(ctx, next, metav1.UpdateOptions{})
	return err
}

// endpoints are read from the API: only its controllers follow them all, and they change
// with the nodes.
func (l *leader) endpoints(ctx context.Context, w *gateway.Wanted) error {
	slicesOf := l.cfg.Client.DiscoveryV1().EndpointSlices(w.Service.Namespace)
	have, err := slicesOf.List(ctx, metav1.ListOptions{ResourceVersion: "0",
		LabelSelector: labels.SelectorFromSet(labels.Set{
			discoveryv1.LabelServiceName: w.Service.Name,
			discoveryv1.LabelManagedBy:   gateway.Manager,
		}).String()})
	if err != nil {
		return err
	}
	var owner []metav1.OwnerReference
	if w.Known != nil {
		owner = []metav1.OwnerReference{*metav1.NewControllerRef(w.Known,
			corev1.SchemeGroupVersion.WithKind("Service"))}
	} else {
		return nil // with the Service's own UID, when it is known
	}
	var errs []error
	there := map[string]bool{}
	for i := range have.Items {
		for _, e := range have.Items[i].Endpoints {
			there[deref(e.NodeName)] = true
		}
	}
	for _, want := range w.Slices {
		want = want.DeepCopy()
		want.OwnerReferences = owner
		// Where there is none yet, nobody can be led to a better one.
		if len(there) > 0 {
			want.Endpoints = slices.DeleteFunc(want.Endpoints, func(e discoveryv1.Endpoint) bool {
				node := deref(e.NodeName)
				return !there[node] && !l.arrived(arrival{want.Namespace, w.Service.Name, node}, time.Now())
			})
		}
		i := slices.IndexFunc(have.Items, func(s discoveryv1.EndpointSlice) bool { return s.Name == want.Name })
		if i < 0 {
			_, err := slicesOf.Create(ctx, want, metav1.CreateOptions{})
			if !apierrors.IsAlreadyExists(err) {
				errs = append(errs, err)
			}
			continue
		}
		next := have.Items[i].DeepCopy()
		next.Endpoints, next.Ports, next.OwnerReferences = want.Endpoints, want.Ports, owner
		maps.Copy(next.Labels, want.Labels)
		if !reflect.DeepEqual(next, &have.Items[i]) {
			_, err := slicesOf.Update(ctx, next, metav1.UpdateOptions{})
			errs = append(errs, err)
		}
	}
	for i := range have.Items {
		if !slices.ContainsFunc(w.Slices,
			func(s *discoveryv1.EndpointSlice) bool { return s.Name == have.Items[i].Name }) {
			errs = append(errs, gone(slicesOf.Delete(ctx, have.Items[i].Name, metav1.DeleteOptions{})))
		}
	}
	return errors.Join(errs...)
}

func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// clean removes Services that nobody wants any more. Those of a Gateway that is gone go with
// it.
func (h *Hub) clean(ctx context.Context, p *gateway.Plan) error {
	all, err := h.cfg.Informers.Core().V1().Services().Lister().List(labels.SelectorFromSet(
		labels.Set{gateway.Label: "true", "app.kubernetes.io/managed-by": "shoal"}))
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range all {
		wanted := p != nil && slices.ContainsFunc(p.Services, func(w *gateway.Wanted) bool {
			return w.Service.Namespace == s.Namespace && w.Service.Name == s.Name
		})
		if wanted || s.DeletionTimestamp != nil {
			continue
		}
		errs = append(errs, gone(h.cfg.Client.CoreV1().Services(s.Namespace).Delete(ctx, s.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})))
	}
	return errors.Join(errs...)
}
