package gateway

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// Plan is what shall be. Statuses are of copies.
type Plan struct {
	// Config is all that nodes' proxies do together.
	Config    *gatewayfeed.Config
	Classes   []*gatewayv1.GatewayClass
	Gateways  []*gatewayv1.Gateway
	Sets      []*gatewayv1.ListenerSet
	HTTP      []*gatewayv1.HTTPRoute
	GRPC      []*gatewayv1.GRPCRoute
	TLS       []*gatewayv1.TLSRoute
	TCP       []*gatewayv1.TCPRoute
	UDP       []*gatewayv1.UDPRoute
	Policies  []*gatewayv1.BackendTLSPolicy
	Ingresses []*networkingv1.Ingress
	Services  []*Wanted
	Numbers   Numbers
	// Nodes are those that have the proxy: the others are told nothing.
	Nodes map[string]bool
	// Told is the configuration as nodes are told it; Fault: it cannot be told.
	Told  *Told
	Fault error
	// Invalid are the IngressClasses whose parameters are, which have no status, with why.
	Invalid map[*networkingv1.IngressClass]string
}

type compiler struct {
	*World
	now      metav1.Time
	plan     *Plan
	gateways map[types.NamespacedName]*gateway
	sets     map[types.NamespacedName]*set
	order    []*gateway
	policies policies
	used     map[int32]bool // ports of nodes
	// refused are listeners and routes that there is no room for.
	refused map[string]bool
	// routeOrder are the routes, by kind, namespace and name, the oldest of a kind first.
	routeOrder          []string
	ingressCertificates map[string][]string // by Ingress
	selections          map[string]*selection
	placed              []placed
	ingressGroups       []*ingressGroup
	ingressOf           map[string]*ingressGroup // by class
}

// gateway is one of a class of ours.
type gateway struct {
	obj       *gatewayv1.Gateway // a copy
	listeners []*listener        // its sets' too, those that win conflicts first
	sets      []*set
	// accepted is false where nothing of it works.
	accepted verdict
	on       *selection // the nodes that answer
	held     bool       // its parameters are wrong
	resolved *verdict   // nil: there is nothing to resolve
	backend  string     // the certificate shown to backends
	service  *corev1.Service
	wanted   *Wanted
	addrs    []gatewayv1.GatewayStatusAddress
	usable   verdict
}

// set is a ListenerSet of such a gateway.
type set struct {
	obj       *gatewayv1.ListenerSet
	gw        *gateway // nil: it may not be its
	listeners []*listener
}

// listener is an entry of either.
type listener struct {
	gatewayv1.Listener
	gw         *gateway
	set        *set // nil: of the gateway itself
	namespace  string
	generation int64
	kinds      []gatewayv1.RouteGroupKind
	accepted   verdict
	resolved   verdict
	conflicted verdict
	attached   int32
	feed       gatewayfeed.Listener
	usable     bool // it may have routes
}

func (l *listener) path() string {
	owner := l.gw.obj.Name
	if l.set != nil {
		owner = l.set.obj.Name
	}
	return l.namespace + "/" + owner + "/" + string(l.Name)
}

// Compile makes the plan. What there is no room for is left out, and its status says so.
func Compile(w *World, now metav1.Time) *Plan { return compile(w, now, limits) }

func compile(w *World, now metav1.Time, most amount) *Plan {
	c := compileWithout(w, now, nil)
	most.ports -= 2 * max(len(c.ingressGroups)-1, 0) // what is left beside those of Ingresses
	if refused := c.overLimit(most); len(refused) > 0 {
		c = compileWithout(w, now, refused)
	}
	return c.plan
}

// compileWithout makes a plan without what is refused.
func compileWithout(w *World, now metav1.Time, refused map[string]bool) *compiler {
	c := &compiler{
		World: w,
		now:   now,
		plan: &Plan{Config: &gatewayfeed.Config{Certificates: map[string]gatewayfeed.Certificate{},
			Authorities: map[string]string{}}, Nodes: map[string]bool{}, Invalid: map[*networkingv1.IngressClass]string{}},
		gateways:            map[types.NamespacedName]*gateway{},
		sets:                map[types.NamespacedName]*set{},
		refused:             refused,
		ingressCertificates: map[string][]string{},
		selections:          map[string]*selection{},
	}
	for _, n := range c.World.Nodes {
		c.plan.Nodes[n.Name] = serves(n)
	}
	c.classes()
	c.ingressClasses()
	c.attachSets()
	for _, g := range c.order {
		c.listeners(g)
	}
	c.claims()
	c.services()
	c.tlsPolicies()
	c.routes()
	c.assemble()
	c.ingresses()
	// Only what a listener or backend names is told.
	c.plan.Config = c.plan.Config.Only(func(*gatewayfeed.Port) bool { return true })
	c.statuses()
	c.policyStatuses()
	c.plan.Told, c.plan.Fault = tell(c.placed, c.plan.Config)
	return c
}

// classes finds the gateways that are ours.
func (c *compiler) classes() {
	ours := map[string]bool{}
	defaults := map[string]*selection{}
	invalid := map[string]bool{}
	for _, class := range c.Classes {
		if class.Spec.ControllerName != Controller {
			continue
		}
		out := class.DeepCopy()
		v := yes(gatewayv1.GatewayClassReasonAccepted)
		on, err := c.selected(classParameters(class))
		if err != nil {
			v = no(gatewayv1.GatewayClassReasonInvalidParameters, err.Error())
		}
		ours[class.Name], defaults[class.Name], invalid[class.Name] = true, on, err != nil
		c.set(&out.Status.Conditions, class.Generation, string(gatewayv1.GatewayClassConditionStatusAccepted), v)
		out.Status.SupportedFeatures = nil
		for _, name := range Features {
			out.Status.SupportedFeatures = append(out.Status.SupportedFeatures,
				gatewayv1.SupportedFeature{Name: gatewayv1.FeatureName(name)})
		}
		c.plan.Classes = append(c.plan.Classes, out)
	}
	for _, obj := range byAge(c.Gateways) {
		if !ours[string(obj.Spec.GatewayClassName)] || obj.DeletionTimestamp != nil {
			continue
		}
		g := &gateway{obj: obj.DeepCopy(), accepted: yes(gatewayv1.GatewayReasonAccepted)}
		g.on = defaults[string(obj.Spec.GatewayClassName)]
		if on, err := c.selected(gatewayParameters(obj)); err != nil {
			g.held, g.accepted = true, no(gatewayv1.GatewayReasonInvalidParameters, err.Error())
		} else if on != nil {
			g.on = on
		}
		if invalid[string(obj.Spec.GatewayClassName)] {
			g.held, g.accepted = true, no(gatewayv1.GatewayReasonInvalidParameters, "the class's parameters are not valid")
		}
		for _, a := range obj.Spec.Addresses {
			if deref(a.Type, gatewayv1.IPAddressType) != gatewayv1.IPAddressType {
				g.accepted = no(gatewayv1.GatewayReasonUnsupportedAddress, "addresses are IPAddresses")
			}
		}
		for i := range g.obj.Spec.Listeners {
			l := &listener{Listener: g.obj.Spec.Listeners[i], gw: g, namespace: obj.Namespace,
				generation: obj.Generation}
			g.listeners = append(g.listeners, l)
		}
		c.gateways[nameOf(obj)] = g
		c.order = append(c.order, g)
	}
}

// attachSets gives gateways the listeners of the sets that they let in.
func (c *compiler) attachSets() {
	for _, obj := range byAge(c.Sets) {
		p := obj.Spec.ParentRef
		if deref(p.Group, gatewayv1.GroupName) != gatewayv1.GroupName || deref(p.Kind, "Gateway") != "Gateway" ||
			obj.DeletionTimestamp != nil {
			continue
		}
		g := c.gateways[types.NamespacedName{Namespace: string(deref(p.Namespace,
			gatewayv1.Namespace(obj.Namespace))), Name: string(p.Name)}]
		if g == nil {
			continue
		}
		s := &set{obj: obj.DeepCopy()}
		c.sets[nameOf(obj)] = s
		from, selector := gatewayv1.NamespacesFromNone, (*metav1.LabelSelector)(nil)
		if a := g.obj.Spec.AllowedListeners; a != nil && a.Namespaces != nil {
			from, selector = deref(a.Namespaces.From, gatewayv1.NamespacesFromNone), a.Namespaces.Selector
		}
		if !c.admits(from, selector, g.obj.Namespace, obj.Namespace) {
			continue
		}
		s.gw = g
		g.sets = append(g.sets, s)
		for i := range s.obj.Spec.Listeners {
			e := &s.obj.Spec.Listeners[i]
			l := &listener{gw: g, set: s, namespace: obj.Namespace, generation: obj.Generation,
				Listener: gatewayv1.Listener{
					Name: e.Name, Hostname: e.Hostname, Port: e.Port, Protocol: e.Protocol, TLS: e.TLS,
					AllowedRoutes: e.AllowedRoutes}}
			s.listeners = append(s.listeners, l)
			g.listeners = append(g.listeners, l)
		}
	}
}

// listeners says what each of a gateway's is worth.
func (c *compiler) listeners(g *gateway) {
	if b := g.obj.Spec.TLS; b != nil && b.Backend != nil && b.Backend.ClientCertificateRef != nil {
		name, v := c.certificate(*b.Backend.ClientCertificateRef, "Gateway", g.obj.Namespace,
			string(gatewayv1.GatewayReasonInvalidClientCertificateRef), string(gatewayv1.GatewayReasonRefNotPermitted))
		if v.ok {
			v = yes(gatewayv1.GatewayReasonResolvedRefs)
		}
		g.backend, g.resolved = name, &v
	}
	for i, l := range g.listeners {
		l.feed = gatewayfeed.Listener{
			Name: l.path(), Protocol: string(l.Protocol), Hostname: strings.ToLower(string(deref(l.Hostname, "")))}
		l.resolved, l.accepted = yes(gatewayv1.ListenerReasonResolvedRefs), yes(gatewayv1.ListenerReasonAccepted)
		l.conflicted = no(gatewayv1.ListenerReasonNoConflicts, "")
		if !c.protocol(l) {
			continue
		}
		c.kindsOf(l)
		if c.refused[l.key()] {
			l.accepted = no(ReasonLimitExceeded, limitMessage)
			continue
		}
		if l.Protocol == gatewayv1.HTTPSProtocolType || l.Protocol == gatewayv1.TLSProtocolType {
			c.tlsOf(l)
		}
		for _, before := range g.listeners[:i] {
			if v := conflict(before, l); v.ok &&
				before.accepted.reason != string(gatewayv1.ListenerReasonUnsupportedProtocol) && !before.conflicted.ok {
				l.conflicted, l.accepted = v, verdict{false, v.reason, v.message}
				break
			}
		}
		l.usable = l.accepted.ok && g.accepted.ok
	}
}

// conflict tells why two listeners cannot both answer.
func conflict(a, b *listener) verdict {
	udp := func(l *listener) bool { return l.Protocol == gatewayv1.UDPProtocolType }
	if a.Port != b.Port || udp(a) != udp(b) {
		return verdict{}
	}
	secure := func(l *listener) bool {
		return l.Protocol == gatewayv1.HTTPSProtocolType || l.Protocol == gatewayv1.TLSProtocolType
	}
	if a.Protocol != b.Protocol && !(secure(a) && secure(b)) {
		return verdict{true, string(gatewayv1.ListenerReasonProtocolConflict), "the port speaks another protocol"}
	}
	if a.Protocol == gatewayv1.TCPProtocolType || udp(a) || a.feed.Hostname == b.feed.Hostname {
		return verdict{true, string(gatewayv1.ListenerReasonHostnameConflict),
			"another listener has the port and the host name"}
	}
	return verdict{}
}

func (c *compiler) protocol(l *listener) bool {
	switch l.Protocol {
	case gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType, gatewayv1.TLSProtocolType, gatewayv1.TCPProtocolType,
		gatewayv1.UDPProtocolType:
		return true
	}
	l.accepted = no(gatewayv1.ListenerReasonUnsupportedProtocol, fmt.Sprintf("protocol %q is not supported",
		l.Protocol))
	l.kinds = []gatewayv1.RouteGroupKind{}
	return false
}

func routeKind(kind string) gatewayv1.RouteGroupKind {
	group := gatewayv1.Group(gatewayv1.GroupName)
	return gatewayv1.RouteGroupKind{Group: &group, Kind: gatewayv1.Kind(kind)}
}

// kindsOf are the kinds of routes that a listener takes.
func (c *compiler) kindsOf(l *listener) {
	var all []gatewayv1.RouteGroupKind
	switch l.Protocol {
	case gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType:
		all = []gatewayv1.RouteGroupKind{routeKind("HTTPRoute"), routeKind("GRPCRoute")}
	case gatewayv1.TLSProtocolType:
		all = []gatewayv1.RouteGroupKind{routeKind("TLSRoute")}
	case gatewayv1.TCPProtocolType:
		all = []gatewayv1.RouteGroupKind{routeKind("TCPRoute")}
	case gatewayv1.UDPProtocolType:
		all = []gatewayv1.RouteGroupKind{routeKind("UDPRoute")}
	}
	l.kinds = all
	if l.AllowedRoutes == nil || len(l.AllowedRoutes.Kinds) == 0 {
		return
	}
	l.kinds = []gatewayv1.RouteGroupKind{}
	for _, k := range l.AllowedRoutes.Kinds {
		i := slices.IndexFunc(all, func(a gatewayv1.RouteGroupKind) bool {
			return a.Kind == k.Kind && deref(k.Group, gatewayv1.GroupName) == gatewayv1.GroupName
		})
		if i < 0 {
			l.resolved = no(gatewayv1.ListenerReasonInvalidRouteKinds, fmt.Sprintf("%s is no kind of route for %s",
				k.Kind, l.Protocol))
			continue
		}
		l.kinds = append(l.kinds, all[i])
	}
}

// tlsOf finds a listener's certificates.
func (c *compiler) tlsOf(l *listener) {
	from := "Gateway"
	if l.set != nil {
		from = "ListenerSet"
	}
	if l.TLS != nil && deref(l.TLS.Mode, gatewayv1.TLSModeTerminate) == gatewayv1.TLSModePassthrough {
		if l.Protocol == gatewayv1.HTTPSProtocolType {
			l.accepted = no(gatewayv1.ListenerReasonUnsupportedValue, "an HTTPS listener ends TLS")
			return
		}
		l.feed.Passthrough = true
		return
	}
	if l.TLS == nil || len(l.TLS.CertificateRefs) == 0 {
		l.resolved = no(gatewayv1.ListenerReasonInvalidCertificateRef, "the listener names no certificate")
		return
	}
	for _, ref := range l.TLS.CertificateRefs {
		name, v := c.certificate(ref, from, l.namespace,
			string(gatewayv1.ListenerReasonInvalidCertificateRef), string(gatewayv1.ListenerReasonRefNotPermitted))
		if !v.ok {
			l.resolved = v
			continue
		}
		l.feed.Certificates = append(l.feed.Certificates, name)
	}
	c.clients(l)
}

// clients says which certificates a listener's clients show.
func (c *compiler) clients(l *listener) {
	t := l.gw.obj.Spec.TLS
	if t == nil || t.Frontend == nil || l.Protocol != gatewayv1.HTTPSProtocolType {
		return
	}
	v := t.Frontend.Default.Validation
	for _, p := range t.Frontend.PerPort {
		if p.Port == l.Port {
			v = p.TLS.Validation
		}
	}
	if v == nil {
		return
	}
	l.feed.Clients = &gatewayfeed.ClientAuth{Insecure: v.Mode == gatewayv1.AllowInsecureFallback}
	for _, ref := range v.CACertificateRefs {
		namespace := string(deref(ref.Namespace, gatewayv1.Namespace(l.gw.obj.Namespace)))
		name, bad := c.authority(string(ref.Group), string(ref.Kind), types.NamespacedName{Namespace: namespace,
			Name: string(ref.Name)},
			&reference{group: gatewayv1.GroupName, kind: "Gateway", namespace: l.gw.obj.Namespace,
				toKind: string(ref.Kind), toNamespace: namespace, toName: string(ref.Name)})
		switch bad {
		case nil:
			l.feed.Clients.Authorities = append(l.feed.Clients.Authorities, name)
		case errKind:
			l.resolved = no(gatewayv1.ListenerReasonInvalidCACertificateKind,
				"a CA certificate is in a ConfigMap or Secret")
		case errForbidden:
			l.resolved = no(gatewayv1.ListenerReasonRefNotPermitted, "no ReferenceGrant permits the CA certificate")
		default:
			l.resolved = no(gatewayv1.ListenerReasonInvalidCACertificateRef, bad.Error())
		}
	}
	if len(l.feed.Clients.Authorities) == 0 {
		l.accepted = no(gatewayv1.ListenerReasonNoValidCACertificate,
			"no CA certificate that clients are verified by is valid")
	}
}

// certificate reads a Secret's; its name in the configuration says what is in it, so that
// one that changes is another.
func (c *compiler) certificate(ref gatewayv1.SecretObjectReference, kind, namespace, invalid,
	forbidden string) (string, verdict) {
	if deref(ref.Group, "") != "" || deref(ref.Kind, "Secret") != "Secret" {
		return "", verdict{false, invalid, "a certificate is in a Secret"}
	}
	to := types.NamespacedName{Namespace: string(deref(ref.Namespace, gatewayv1.Namespace(namespace))),
		Name: string(ref.Name)}
	if !c.permitted(reference{gatewayv1.GroupName, kind, namespace, "", "Secret", to.Namespace, to.Name}) {
		return "", verdict{false, forbidden, fmt.Sprintf("no ReferenceGrant permits Secret %s", to)}
	}
	name, err := c.secret(to)
	if err != nil {
		return "", verdict{false, invalid, err.Error()}
	}
	return name, verdict{ok: true}
}

func (c *compiler) secret(to types.NamespacedName) (string, error) {
	s := c.Secret(to)
	if s == nil {
		return "", fmt.Errorf("there is no Secret %s", to)
	}
	chain, key := s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]
	if s.Type != corev1.SecretTypeTLS || len(chain) == 0 {
		return "", fmt.Errorf("secret %s is not of type %s", to, corev1.SecretTypeTLS)
	}
	if _, err := tls.X509KeyPair(chain, key); err != nil {
		return "", fmt.Errorf("secret %s has no certificate with its key: %w", to, err)
	}
	name := to.String() + "@" + digest(string(chain)+"\x00"+string(key))
	c.plan.Config.Certificates[name] = gatewayfeed.Certificate{Chain: string(chain), Key: string(key)}
	return name, nil
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

var (
	errKind      = errors.New("it is of another kind")
	errForbidden = errors.New("no ReferenceGrant permits it")
)

// authority reads a bundle; from nil: of the same namespace.
func (c *compiler) authority(group, kind string, to types.NamespacedName, from *reference) (string, error) {
	if group != "" || kind != "ConfigMap" && kind != "Secret" {
		return "", errKind
	}
	if from != nil && !c.permitted(*from) {
		return "", errForbidden
	}
	var pem string
	if kind == "Secret" {
		s := c.Secret(to)
		if s == nil {
			return "", fmt.Errorf("there is no Secret %s", to)
		}
		pem = string(s.Data["ca.crt"])
	} else {
		m := c.ConfigMap(to)
		if m == nil {
			return "", fmt.Errorf("there is no ConfigMap %s", to)
		}
		pem = m.Data["ca.crt"]
	}
	if !hasCertificate(pem) {
		return "", fmt.Errorf("%s %s has no certificate in ca.crt", kind, to)
	}
	name := kind + "/" + to.String() + "@" + digest(pem)
	c.plan.Config.Authorities[name] = pem
	return name, nil
}

// assemble gives each port its listeners.
func (c *compiler) assemble() {
	ports := map[string]*placed{}
	for _, g := range c.order {
		for _, l := range g.listeners {
			if !l.usable || !l.resolvedTLS() {
				continue
			}
			number := c.number(g, l)
			if number == 0 {
				continue
			}
			p := placed{on: g.on, Port: gatewayfeed.Port{Number: number, Public: uint16(l.Port),
				Listeners: []gatewayfeed.Listener{l.feed}}}
			if old := ports[p.Key()]; old != nil {
				old.Listeners = append(old.Listeners, l.feed)
			} else {
				ports[p.Key()] = &p
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(ports)) {
		c.plan.Config.Ports = append(c.plan.Config.Ports, ports[key].Port)
		c.placed = append(c.placed, *ports[key])
	}
}

// resolvedTLS is false where TLS cannot be ended.
func (l *listener) resolvedTLS() bool {
	secure := l.Protocol == gatewayv1.HTTPSProtocolType || l.Protocol == gatewayv1.TLSProtocolType
	return !secure || l.feed.Passthrough || len(l.feed.Certificates) > 0
}
