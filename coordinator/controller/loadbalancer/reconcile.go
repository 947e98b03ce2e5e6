package loadbalancer

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// patience is how long a load balancer may take.
const patience = time.Minute

// byAddress is the index of Services by the addresses in their status.
const byAddress = "load-balancer-address"

type reconciler struct {
	client   kubernetes.Interface
	services corelisters.ServiceLister
	indexed  cache.Indexer
	maps     corelisters.ConfigMapLister
	nodes    corelisters.NodeLister
	events   record.EventRecorder
	deps     Deps
	requeue  func(key string)

	// The loop has one worker, which alone uses these.
	writes *controller.Writes
	given  map[netip.Addr]string // the key of who was given an address, and may not show it yet
	told   map[string]string     // by key: the last problem
	since  map[string]time.Time  // by key: when it began to wait for another's load balancer; zero: it was told
	pools  []pool                // none: the ConfigMap cannot be read
	read   string                // the ConfigMap's version that pools are of
}

// Deps are what the controller knows of the cluster.
type Deps struct {
	// Reserved are the ranges of pods and cluster IPs, which no pool may have.
	Reserved []netip.Prefix
	// API is the address of the Service APIService, a pool of its own; not valid: there is none.
	API        netip.Addr
	APIService types.NamespacedName
}

// New builds the controller; its keys are Services.
func New(env controller.Env, deps Deps) (*controller.Loop, error) {
	core := env.Informers.Core().V1()
	services := core.Services()
	if err := controller.Index(services.Informer(), byAddress, indexAddresses); err != nil {
		return nil, err
	}
	loop := controller.New("load-balancer", 1, env.Log)
	r := &reconciler{
		client:   env.Client,
		services: services.Lister(),
		indexed:  services.Informer().GetIndexer(),
		maps:     core.ConfigMaps().Lister(),
		nodes:    core.Nodes().Lister(),
		events:   env.Recorder("service-controller"),
		deps:     deps,
		requeue:  loop.Add,
		writes:   controller.NewWrites(),
		given:    map[netip.Addr]string{},
		told:     map[string]string{},
		since:    map[string]time.Time{},
	}
	loop.Reconciler = r
	loop.Needs(core.Nodes().Informer())
	controller.Watch(loop, services.Informer(), r.serviceChanged)
	controller.Watch(loop, core.ConfigMaps().Informer(), func(old, m *corev1.ConfigMap) {
		if isPools(old) || isPools(m) {
			r.all()
		}
	})
	return loop, nil
}

func isPools(m *corev1.ConfigMap) bool {
	return m != nil && m.Namespace == PoolsNamespace && m.Name == PoolsName
}

func indexAddresses(obj any) (out []string, _ error) {
	s, ok := obj.(*corev1.Service)
	if !ok || s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil, nil
	}
	for _, a := range addresses(s) {
		out = append(out, a.String())
	}
	return out, nil
}

// serviceChanged adds a Service that has to do with load balancers; who waits for an
// address may have the one that it no longer has.
func (r *reconciler) serviceChanged(old, s *corev1.Service) {
	var before, after []netip.Addr
	if old != nil {
		before = addresses(old)
	}
	if s != nil {
		after = addresses(s)
		if s.Spec.Type == corev1.ServiceTypeLoadBalancer || marked(s) || old != nil && waits(old) {
			r.requeue(controller.Key(s.Namespace, s.Name))
		}
	} else if old != nil {
		r.requeue(controller.Key(old.Namespace, old.Name))
	}
	for _, a := range after {
		if !slices.Contains(before, a) { // should two have it
			for _, other := range r.holders(a) {
				r.requeue(controller.Key(other.Namespace, other.Name))
			}
		}
	}
	if slices.ContainsFunc(before, func(a netip.Addr) bool { return !slices.Contains(after, a) }) {
		r.all()
	}
}

// all adds each Service that has, or may get, an address from here, the older first.
func (r *reconciler) all() {
	list, err := r.services.List(labels.Everything())
	if err != nil {
		return
	}
	slices.SortFunc(list, func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	for _, s := range list {
		if served(s) || marked(s) {
			r.requeue(controller.Key(s.Namespace, s.Name))
		}
	}
}

// Reconcile brings one Service's status to what its plan says.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	s, err := r.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		r.writes.Forget(key)
		delete(r.told, key)
		delete(r.since, key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if r.writes.Behind(key, s.ResourceVersion) {
		return 0, nil
	}
	pools, on, err := r.current()
	if err != nil {
		return 0, err
	}
	if r.isAPI(s) {
		pools, on = []pool{{name: "virtualAddress", spans: []span{{r.deps.API, r.deps.API}}}}, true
	}
	switch {
	case on && served(s):
		delete(r.since, key)
		return 0, r.serve(ctx, key, s, pools)
	case marked(s):
		return 0, r.write(ctx, key, s, plan{})
	}
	return r.tellWaiting(key, s), nil
}

// isAPI tells whether a Service is the one that has the API's own address.
func (r *reconciler) isAPI(s *corev1.Service) bool {
	return r.deps.API.IsValid() && s.Namespace == r.deps.APIService.Namespace && s.Name == r.deps.APIService.Name
}

// current reads the pools; without the ConfigMap nothing is on. Of one that cannot be
// read the last one counts.
func (r *reconciler) current() (pools []pool, on bool, err error) {
	m, err := r.maps.ConfigMaps(PoolsNamespace).Get(PoolsName)
	if apierrors.IsNotFound(err) {
		r.pools, r.read = nil, ""
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if m.ResourceVersion != r.read {
		read, err := parsePools(m.Data, r.deps.Reserved)
		if err != nil {
			r.events.Eventf(m, corev1.EventTypeWarning, "InvalidPools",
				"%v; what was given stays, and nothing new is", err)
			r.pools = nil
		} else {
			r.pools = read
		}
		r.read = m.ResourceVersion
	}
	return r.pools, true, nil
}

func (r *reconciler) serve(ctx context.Context, key string, s *corev1.Service, pools []pool) error {
	if pools == nil { // of a ConfigMap that cannot be read, or is empty
		if !marked(s) {
			r.tell(key, s, fmt.Sprintf("ConfigMap %s/%s has no pools that can be read", PoolsNamespace, PoolsName))
		}
		return nil
	}
	p := planFor(s, pools, r.takenFrom(key, s))
	r.tell(key, s, p.problem)
	return r.write(ctx, key, s, p)
}

// tell writes an event when the problem is another than before.
func (r *reconciler) tell(key string, s *corev1.Service, problem string) {
	if problem == r.told[key] {
		return
	}
	if problem == "" {
		delete(r.told, key)
		return
	}
	r.told[key] = problem
	r.events.Event(s, corev1.EventTypeWarning, "NoAddress", problem)
}

// holders are the Services that show an address.
func (r *reconciler) holders(a netip.Addr) (out []*corev1.Service) {
	list, err := r.indexed.ByIndex(byAddress, a.String())
	if err != nil {
		return nil
	}
	for _, o := range list {
		if s, ok := o.(*corev1.Service); ok {
			out = append(out, s)
		}
	}
	return out
}

// takenFrom tells who else has an address than the Service of key.
func (r *reconciler) takenFrom(key string, s *corev1.Service) taken {
	own := addresses(s)
	return func(a netip.Addr) string {
		if a == r.deps.API && !r.isAPI(s) {
			return "the API"
		}
		has := marked(s) && slices.Contains(own, a)
		for _, other := range r.holders(a) {
			k := controller.Key(other.Namespace, other.Name)
			if yields := has && marked(other) && precedes(s, other); k != key && !yields {
				return "Service " + k
			}
		}
		if k := r.given[a]; k != "" && k != key && r.behind(k) {
			return "Service " + k
		}
		return r.nodeWith(a)
	}
}

// precedes tells whether the first of two Services keeps an address that both have:
// the older one does, or the one of the lower UID.
func precedes(s, other *corev1.Service) bool {
	return cmp.Or(s.CreationTimestamp.Compare(other.CreationTimestamp.Time), cmp.Compare(s.UID, other.UID)) < 0
}

// behind tells whether what was written of a Service is not in the cache yet.
func (r *reconciler) behind(key string) bool {
	namespace, name, _ := cache.SplitMetaNamespaceKey(key)
	s, err := r.services.Services(namespace).Get(name)
	return err == nil && r.writes.Behind(key, s.ResourceVersion)
}

// nodeWith names the node that has an address.
func (r *reconciler) nodeWith(a netip.Addr) string {
	list, err := r.nodes.List(labels.Everything())
	if err != nil {
		return ""
	}
	text := a.String()
	for _, n := range list {
		if slices.ContainsFunc(n.Status.Addresses, func(x corev1.NodeAddress) bool { return x.Address == text }) {
			return "node " + n.Name
		}
	}
	return ""
}

func (r *reconciler) write(ctx context.Context, key string, s *corev1.Service, p plan) error {
	if len(p.addrs) == 0 && finalized(s) {
		left, err := r.finalize(ctx, key, s, slices.DeleteFunc(slices.Clone(s.Finalizers), isOwn))
		if err != nil || left.DeletionTimestamp != nil && len(left.Finalizers) == 0 { // it is gone
			return err
		}
		s = left
	}
	status, changed := statusFor(s, p, metav1.Now())
	if !changed {
		return r.keep(ctx, key, s)
	}
	next := s.DeepCopy()
	next.Status = status
	written, err := r.client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	r.writes.Wrote(key, written.ResourceVersion)
	for a, k := range r.given { // what another wrote is in the cache by now, or is nobody's
		if !r.behind(k) {
			delete(r.given, a)
		}
	}
	for _, a := range p.addrs {
		r.given[a] = key
	}
	if len(p.addrs) == 0 {
		r.events.Event(s, corev1.EventTypeNormal, "AddressReleased", "The nodes announce this Service no more")
		return nil
	}
	r.events.Eventf(s, corev1.EventTypeNormal, "AddressAssigned", "Given %v from %s", p.addrs, p.from())
	return r.keep(ctx, key, written)
}

// keep sees to it that a Service with addresses from here has the finalizer.
func (r *reconciler) keep(ctx context.Context, key string, s *corev1.Service) error {
	if !marked(s) || finalized(s) || s.DeletionTimestamp != nil {
		return nil
	}
	_, err := r.finalize(ctx, key, s, append(slices.Clone(s.Finalizers), Finalizer))
	return err
}

// finalize writes a Service's finalizers.
func (r *reconciler) finalize(ctx context.Context, key string, s *corev1.Service, f []string) (*corev1.Service, error) {
	next := s.DeepCopy()
	next.Finalizers = f
	written, err := r.client.CoreV1().Services(s.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	r.writes.Wrote(key, written.ResourceVersion)
	return written, nil
}

// tellWaiting tells of a Service that has waited long enough for another's load
// balancer, once, and otherwise when to look again.
func (r *reconciler) tellWaiting(key string, s *corev1.Service) time.Duration {
	if !waits(s) {
		delete(r.since, key)
		return 0
	}
	begun, ok := r.since[key]
	if !ok {
		begun = time.Now()
		r.since[key] = begun
	}
	if begun.IsZero() { // told
		return 0
	}
	if left := patience - time.Since(begun); left > 0 {
		return left
	}
	r.since[key] = time.Time{}
	r.events.Event(s, corev1.EventTypeWarning, "NoLoadBalancer", message(s))
	return 0
}
