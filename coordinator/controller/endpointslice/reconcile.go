package endpointslice

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	library "k8s.io/endpointslice"
	"k8s.io/endpointslice/topologycache"
	"k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"github.com/shoal-project/shoal/coordinator/controller"
)

const managedBy = "endpointslice-controller.k8s.io"

// errStale ends a reconcile whose own last write the cache does not show yet;
// the slice's event, or the retry, brings the key back.
var errStale = errors.New("EndpointSlice informer cache is out of date")

type reconciler struct {
	events   record.EventRecorder
	services corelisters.ServiceLister
	pods     corelisters.PodLister
	slicesOf func(namespace, service string) []*discoveryv1.EndpointSlice
	nodes    corelisters.NodeLister
	library  *library.Reconciler
	tracker  *util.EndpointSliceTracker
	triggers *util.TriggerTimeTracker
	topology *topologycache.TopologyCache
	loop     *controller.Loop
}

// New builds the controller; its keys are Services. A slice has at most perSlice endpoints.
func New(env controller.Env, perSlice int) (*controller.Loop, error) {
	core, endpointSlices := env.Informers.Core().V1(), env.Informers.Discovery().V1().EndpointSlices()
	slicesOf, err := controller.SlicesOf(endpointSlices.Informer(), managedBy)
	if err != nil {
		return nil, err
	}
	r := &reconciler{
		events:   env.Recorder("endpoint-slice-controller"),
		services: core.Services().Lister(), pods: core.Pods().Lister(), nodes: core.Nodes().Lister(), slicesOf: slicesOf,
		tracker: util.NewEndpointSliceTracker(), triggers: util.NewTriggerTimeTracker(),
		topology: topologycache.NewTopologyCache(),
		loop:     controller.New("endpointslice", 5, env.Log),
	}
	r.library = library.NewReconciler(env.Client, r.nodes, int32(perSlice), r.tracker, r.topology, r.events, managedBy,
		library.WithPreferSameTrafficDistributionEnabled(true))
	r.loop.Reconciler = r
	r.loop.WatchKeys(core.Services().Informer())
	controller.WatchSelected(r.loop, core.Pods().Informer(), r.services)
	controller.Watch(r.loop, endpointSlices.Informer(), r.sliceChanged)
	controller.Watch(r.loop, core.Nodes().Informer(), r.nodeChanged)
	return r.loop, nil
}

// sliceChanged undoes changes by others and follows service name changes; our
// own writes are known to the tracker.
func (r *reconciler) sliceChanged(old, slice *discoveryv1.EndpointSlice) {
	switch {
	case slice == nil:
		if r.library.ManagedByController(old) && r.tracker.Has(old) && !r.tracker.HandleDeletion(old) {
			r.wake(old)
		}
	case old != nil && (r.library.ManagedByChanged(old, slice) ||
		old.Labels[discoveryv1.LabelServiceName] != slice.Labels[discoveryv1.LabelServiceName]):
		if r.library.ManagedByController(old) {
			// The Service has lost it. The tracker would wait for ever until it is seen again.
			r.tracker.HandleDeletion(old)
		}
		r.wake(old)
		r.wake(slice)
	case r.library.ManagedByController(slice) && r.tracker.ShouldSync(slice):
		r.wake(slice)
	}
}

func (r *reconciler) wake(slice *discoveryv1.EndpointSlice) {
	if key, err := library.ServiceControllerKey(slice); err == nil {
		r.loop.Add(key)
	}
}

// nodesKey is the key under which the nodes' topology is followed, beside those
// of Services; no Service has it.
const nodesKey = "/nodes"

// gather is how long changes of nodes wait for each other: each costs a look at
// all nodes.
const gather = 500 * time.Millisecond

func (r *reconciler) nodeChanged(old, node *corev1.Node) {
	if old == nil || node == nil || !sameTopology(old, node) {
		r.loop.AddAfter(nodesKey, gather)
	}
}

// followNodes keeps the zones' CPU shares for topology hints, and has the
// Services looked at whose hints depend on them.
func (r *reconciler) followNodes() error {
	nodes, err := r.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	r.topology.SetNodes(klog.Background(), nodes)
	for _, key := range r.topology.GetOverloadedServices() {
		r.loop.Add(key)
	}
	services, err := r.services.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, s := range services {
		if key := controller.Key(s.Namespace, s.Name); wantsHints(s) && !r.topology.HasPopulatedHints(key) {
			r.loop.Add(key)
		}
	}
	return nil
}

// wantsHints tells whether a Service asks for topology aware routing.
func wantsHints(s *corev1.Service) bool {
	mode, ok := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if !ok {
		mode = s.Annotations[corev1.AnnotationTopologyMode]
	}
	return mode == "Auto" || mode == "auto"
}

func ready(n *corev1.Node) bool { return controller.NodeReadyStatus(n) == corev1.ConditionTrue }

func sameTopology(a, b *corev1.Node) bool {
	return a.Labels[corev1.LabelTopologyZone] == b.Labels[corev1.LabelTopologyZone] && ready(a) == ready(b) &&
		a.Status.Allocatable.Cpu().Equal(*b.Status.Allocatable.Cpu())
}

// Reconcile brings one Service's slices up to date.
func (r *reconciler) Reconcile(_ context.Context, key string) (time.Duration, error) {
	if key == nodesKey {
		return 0, r.followNodes()
	}
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	service, err := r.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		r.triggers.DeleteService(namespace, name)
		r.library.DeleteService(namespace, name)
		r.tracker.DeleteService(namespace, name)
		return 0, nil
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
	own := r.ownSlices(service)
	// The tracker forgets a deletion once its event is here, so that what was listed
	// before the event may only seem to be up to date.
	if r.tracker.StaleSlices(service, own) || !slices.Equal(own, r.ownSlices(service)) {
		return 0, errStale
	}
	trigger := r.triggers.ComputeEndpointLastChangeTriggerTime(namespace, service, pods)
	if err := r.library.Reconcile(klog.Background(), service, pods, own, trigger); err != nil {
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) && !apierrors.IsConflict(err) {
			r.events.Eventf(service, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
				"Error updating Endpoint Slices for Service %s/%s: %v", namespace, name, err)
		}
		return 0, err
	}
	return 0, nil
}

// ownSlices returns a Service's slices that are kept here, by name.
func (r *reconciler) ownSlices(service *corev1.Service) []*discoveryv1.EndpointSlice {
	var live []*discoveryv1.EndpointSlice
	for _, s := range r.slicesOf(service.Namespace, service.Name) {
		if s.DeletionTimestamp == nil {
			live = append(live, s)
		}
	}
	slices.SortFunc(live, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return live
}
