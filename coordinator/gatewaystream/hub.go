package gatewaystream

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"
	gatewayinformers "sigs.k8s.io/gateway-api/pkg/client/informers/externalversions/apis/v1"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
	"github.com/shoal-project/shoal/coordinator/gateway"
)

// Config is what a Hub needs.
type Config struct {
	Client    kubernetes.Interface
	Gateways  gatewayclient.Interface
	Informers informers.SharedInformerFactory
	// Definitions follows CustomResourceDefinitions, as the API does itself.
	Definitions func() cache.SharedIndexInformer
	Log         *slog.Logger
}

// Hub has what nodes are told. Its zero value is not ready; use New.
type Hub struct {
	cfg   Config
	log   *slog.Logger
	kinds []*kind
	core  []*core
	wake  chan struct{} // holds a token when something has changed
	// numbers are the ports of nodes by the last plan; only Run's.
	numbers gateway.Numbers

	// parameters are the ConfigMaps that say which nodes answer.
	parameters atomic.Pointer[map[types.NamespacedName]bool]

	mu      sync.Mutex
	told    *gateway.Told // the configuration, encoded; nil: nothing is known yet
	plan    *gateway.Plan
	known   map[string]cache.SharedIndexInformer // that the plan was made from
	changed chan struct{}                        // closed when told or plan are others
	ended   chan struct{}
}

// kind is one of the Gateway API, followed while the API serves it.
type kind struct {
	resource string
	make     func() cache.SharedIndexInformer
	informer cache.SharedIndexInformer // nil: not followed
	stop     context.CancelFunc
}

// core is one of the API's own, which others may follow too.
type core struct {
	informer func() cache.SharedIndexInformer
	counts   func(old, now any) bool // nil: each change
	added    cache.ResourceEventHandlerRegistration
}

const classes = "gatewayclasses"

// New follows nothing yet.
func New(c Config) *Hub {
	h := &Hub{cfg: c, log: c.Log, wake: make(chan struct{}, 1), changed: make(chan struct{}),
		ended: make(chan struct{})}
	add := func(resource string, make func(gatewayclient.Interface, string, time.Duration,
		cache.Indexers) cache.SharedIndexInformer) {
		h.kinds = append(h.kinds, &kind{resource: resource, make: func() cache.SharedIndexInformer {
			return make(c.Gateways, metav1.NamespaceAll, 0, cache.Indexers{})
		}})
	}
	add(classes, func(c gatewayclient.Interface, _ string, t time.Duration,
		i cache.Indexers) cache.SharedIndexInformer {
		return gatewayinformers.NewGatewayClassInformer(c, t, i)
	})
	add("gateways", gatewayinformers.NewGatewayInformer)
	add("listenersets", gatewayinformers.NewListenerSetInformer)
	add("httproutes", gatewayinformers.NewHTTPRouteInformer)
	add("grpcroutes", gatewayinformers.NewGRPCRouteInformer)
	add("tlsroutes", gatewayinformers.NewTLSRouteInformer)
	add("tcproutes", gatewayinformers.NewTCPRouteInformer)
	add("udproutes", gatewayinformers.NewUDPRouteInformer)
	add("referencegrants", gatewayinformers.NewReferenceGrantInformer)
	add("backendtlspolicies", gatewayinformers.NewBackendTLSPolicyInformer)
	f := c.Informers
	h.core = []*core{
		{informer: func() cache.SharedIndexInformer { return f.Networking().V1().Ingresses().Informer() }},
		{informer: func() cache.SharedIndexInformer { return f.Core().V1().Services().Informer() }},
		{informer: func() cache.SharedIndexInformer { return f.Core().V1().Namespaces().Informer() }},
		{informer: func() cache.SharedIndexInformer { return f.Core().V1().Secrets().Informer() }, counts: ofSecret},
		{informer: func() cache.SharedIndexInformer { return f.Core().V1().ConfigMaps().Informer() },
			counts: h.ofConfigMap},
		{informer: func() cache.SharedIndexInformer { return f.Core().V1().Nodes().Informer() }, counts: ofNode},
	}
	return h
}

func ofSecret(old, now any) bool {
	has := func(o any) bool {
		s, ok := o.(*corev1.Secret)
		return ok && (s.Type == corev1.SecretTypeTLS || s.Data["ca.crt"] != nil)
	}
	return has(old) || has(now)
}

func (h *Hub) ofConfigMap(old, now any) bool {
	parameters := h.parameters.Load()
	has := func(o any) bool {
		m, ok := o.(*corev1.ConfigMap)
		return ok && (m.Data["ca.crt"] != "" && m.Name != "kube-root-ca.crt" ||
			parameters != nil && (*parameters)[types.NamespacedName{Namespace: m.Namespace, Name: m.Name}])
	}
	return has(old) || has(now)
}

// ofNode: a node's heartbeats change nothing here.
func ofNode(old, now any) bool {
	a, aok := old.(*corev1.Node)
	b, bok := now.(*corev1.Node)
	if !aok || !bok {
		return true
	}
	is := func(n *corev1.Node) bool {
		return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	}
	says := func(n *corev1.Node) string { return n.Annotations[gatewayfeed.ProxyAnnotation] }
	return is(a) != is(b) || says(a) != says(b) || !maps.Equal(a.Labels, b.Labels) ||
		!reflect.DeepEqual(a.Status.Addresses, b.Status.Addresses)
}

func (h *Hub) poke() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

func (h *Hub) handler(counts func(old, now any) bool) cache.ResourceEventHandler {
	tell := func(old, now any) {
		if counts == nil || counts(old, now) {
			h.poke()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { tell(nil, o) },
		UpdateFunc: tell,
		DeleteFunc: func(o any) {
			if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = d.Obj
			}
			tell(o, nil)
		},
	}
}

// gather is how long changes are gathered, and how long after an error all is tried again.
const (
	gather = 30 * time.Millisecond
	again  = 2 * time.Second
)

// Run follows and compiles until ctx ends; the API runs. start starts informers that are
// asked for by then.
func (h *Hub) Run(ctx context.Context, start func()) error {
	defer close(h.ended)
	defer h.rest()
	// Both are there anyway: the API serves definitions, and gives new Ingresses a class.
	watched := []cache.SharedIndexInformer{h.cfg.Definitions(),
		h.cfg.Informers.Networking().V1().IngressClasses().Informer()}
	for _, i := range watched {
		r, err := i.AddEventHandler(h.handler(nil))
		if err != nil {
			return fmt.Errorf("follow classes: %w", err)
		}
		defer func() { _ = i.RemoveEventHandler(r) }()
	}
	if !cache.WaitForCacheSync(ctx.Done(), watched[0].HasSynced, watched[1].HasSynced) {
		return nil
	}
	h.poke()
	var p pace
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.wake:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(gather, p.wait())):
		}
		select { // what came meanwhile is seen now
		case <-h.wake:
		default:
		}
		began := time.Now()
		if err := h.proceed(ctx, start); err != nil {
			h.log.Warn("Gateways are not followed for now, trying on", "err", err)
			time.AfterFunc(again, h.poke)
		}
		p.done(began)
	}
}

// proceed follows what has to be followed, and compiles if anybody asked.
func (h *Hub) proceed(ctx context.Context, start func()) error {
	served := h.served()
	h.follow(ctx, h.kinds[0], served[classes])
	asked := h.asked()
	synced := true
	for _, k := range h.kinds[1:] {
		h.follow(ctx, k, served[k.resource] && asked)
	}
	for _, k := range h.kinds {
		synced = synced && (k.informer == nil || k.informer.HasSynced())
	}
	for _, c := range h.core {
		switch {
		case asked && c.added == nil:
			r, err := c.informer().AddEventHandler(h.handler(c.counts))
			if err != nil {
				return err
			}
			c.added = r
		case !asked && c.added != nil:
			_ = c.informer().RemoveEventHandler(c.added)
			c.added = nil
		}
	}
	if !asked {
		// Classes that are not read yet are not none: nodes would end what they serve, and the
		// leader delete its Services.
		if i := h.kinds[0].informer; i != nil && !i.HasSynced() {
			time.AfterFunc(gather, h.poke)
			return nil
		}
		return h.publish(nil)
	}
	start() // those that nobody followed before
	for _, c := range h.core {
		synced = synced && c.added.HasSynced()
	}
	if !synced {
		time.AfterFunc(gather, h.poke)
		return nil
	}
	p := gateway.Compile(h.world(), metav1.Now())
	h.numbers = p.Numbers
	return h.publish(p)
}

// asked tells whether a class is ours, or something is left of one that was.
func (h *Hub) asked() bool {
	for _, c := range list[*gatewayv1.GatewayClass](h.kinds[0].informer) {
		if c.Spec.ControllerName == gateway.Controller {
			return true
		}
	}
	for _, c := range list[*networkingv1.IngressClass](h.cfg.Informers.Networking().V1().IngressClasses().Informer()) {
		if c.Spec.Controller == gateway.IngressController {
			return true
		}
	}
	return false
}

// served are the kinds of the Gateway API that are served in the version that is known here.
func (h *Hub) served() map[string]bool {
	out := map[string]bool{}
	for _, d := range list[*apiextensionsv1.CustomResourceDefinition](h.cfg.Definitions()) {
		if d.Spec.Group != gatewayv1.GroupName || d.DeletionTimestamp != nil {
			continue
		}
		version := slices.ContainsFunc(d.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
			return v.Name == gatewayv1.SchemeGroupVersion.Version && v.Served
		})
		established := slices.ContainsFunc(d.Status.Conditions,
			func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
				return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
			})
		out[d.Spec.Names.Plural] = version && established
	}
	return out
}

func (h *Hub) follow(ctx context.Context, k *kind, wanted bool) {
	switch {
	case wanted && k.informer == nil:
		k.informer = k.make()
		if _, err := k.informer.AddEventHandler(h.handler(nil)); err != nil {
			h.log.Error("an informer of the Gateway API takes no handler", "resource", k.resource, "err", err)
		}
		var own context.Context
		own, k.stop = context.WithCancel(ctx)
		go k.informer.RunWithContext(own)
		time.AfterFunc(gather, h.poke)
	case !wanted && k.informer != nil:
		k.stop()
		k.informer, k.stop = nil, nil
	}
}

// rest follows nothing any more.
func (h *Hub) rest() {
	for _, k := range h.kinds {
		if k.stop != nil {
			k.stop()
		}
	}
}

func list[T any](i cache.SharedIndexInformer) (out []T) {
	if i == nil {
		return nil
	}
	for _, o := range i.GetStore().List() {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

func (h *Hub) of(resource string) cache.SharedIndexInformer {
	for _, k := range h.kinds {
		if k.resource == resource {
			return k.informer
		}
	}
	return nil
}

// world is what the informers know.
func (h *Hub) world() *gateway.World {
	core := h.cfg.Informers.Core().V1()
	w := &gateway.World{
		Classes:        list[*gatewayv1.GatewayClass](h.of(classes)),
		Gateways:       list[*gatewayv1.Gateway](h.of("gateways")),
		Sets:           list[*gatewayv1.ListenerSet](h.of("listenersets")),
		HTTPRoutes:     list[*gatewayv1.HTTPRoute](h.of("httproutes")),
		GRPCRoutes:     list[*gatewayv1.GRPCRoute](h.of("grpcroutes")),
		TLSRoutes:      list[*gatewayv1.TLSRoute](h.of("tlsroutes")),
		TCPRoutes:      list[*gatewayv1.TCPRoute](h.of("tcproutes")),
		UDPRoutes:      list[*gatewayv1.UDPRoute](h.of("udproutes")),
		Grants:         list[*gatewayv1.ReferenceGrant](h.of("referencegrants")),
		TLSPolicies:    list[*gatewayv1.BackendTLSPolicy](h.of("backendtlspolicies")),
		IngressClasses: list[*networkingv1.IngressClass](h.cfg.Informers.Networking().V1().IngressClasses().Informer()),
		Ingresses:      list[*networkingv1.Ingress](h.cfg.Informers.Networking().V1().Ingresses().Informer()),
		Nodes:          list[*corev1.Node](core.Nodes().Informer()),
		Namespace: func(name string) *corev1.Namespace {
			n, _ := core.Namespaces().Lister().Get(name)
			return n
		},
		Service: func(n types.NamespacedName) *corev1.Service {
			s, _ := core.Services().Lister().Services(n.Namespace).Get(n.Name)
			return s
		},
		Secret: func(n types.NamespacedName) *corev1.Secret {
			s, _ := core.Secrets().Lister().Secrets(n.Namespace).Get(n.Name)
			return s
		},
		ConfigMap: func(n types.NamespacedName) *corev1.ConfigMap {
			m, _ := core.ConfigMaps().Lister().ConfigMaps(n.Namespace).Get(n.Name)
			return m
		},
	}
	// Before any of them is read: one that comes meanwhile counts.
	parameters := w.Parameters()
	h.parameters.Store(&parameters)
	w.Numbers = h.numbers
	w.Owned, _ = core.Services().Lister().List(labels.SelectorFromSet(labels.Set{gateway.Label: "true"}))
	return w
}

// publish tells all who listen of a plan; nil: nobody asked for anything.
func (h *Hub) publish(p *gateway.Plan) error {
	told := gateway.Nothing()
	var err error
	if p != nil {
		if told, err = p.Told, p.Fault; err == nil {
			err = p.Config.Check()
		}
		if err == nil && told.Most() >= gatewayfeed.MaxLine {
			err = fmt.Errorf("the configuration of Gateways has %d bytes, more than nodes take (%d)", told.Most(),
				gatewayfeed.MaxLine)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.plan, h.known = p, map[string]cache.SharedIndexInformer{}
	for _, k := range h.kinds {
		h.known[k.resource] = k.informer
	}
	if err == nil {
		h.told = told
	}
	close(h.changed)
	h.changed = make(chan struct{})
	return err
}
