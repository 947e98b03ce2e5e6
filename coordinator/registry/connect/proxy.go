package connect

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/streaming/pkg/httpstream"
)

// proxyMethods are the HTTP methods that /proxy passes on.
var proxyMethods = []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"}

// plain dials pods. Their certificates are their own affair, as upstream.
var plain = utilnet.SetTransportDefaults(&http.Transport{
	TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	DialContext:     guarded.DialContext,
})

// proxyREST passes a request on to what an ID names. O is the kind of options
// that carry the rest of the path.
type proxyREST[O runtime.Object] struct {
	locate func(ctx context.Context, id string) (*url.URL, http.RoundTripper, error)
	empty  func() O
	path   func(O) string
	// check, where there is one, refuses requests that the right to the proxy is
	// not enough for.
	check func(req *http.Request, location *url.URL) error
}

var _ rest.Connecter = &proxyREST[*corev1.PodProxyOptions]{}

func (r *proxyREST[O]) New() runtime.Object      { return r.empty() }
func (r *proxyREST[O]) Destroy()                 {}
func (r *proxyREST[O]) ConnectMethods() []string { return proxyMethods }
func (r *proxyREST[O]) NewConnectOptions() (runtime.Object, bool, string) {
	return r.empty(), true, "path"
}

// Connect rewrites a request to its location; links in HTML are rewritten back.
func (r *proxyREST[O]) Connect(ctx context.Context, id string, options runtime.Object,
	responder rest.Responder) (http.Handler, error) {
	o, ok := options.(O)
	if !ok {
		return nil, fmt.Errorf("Invalid options object: %#v", options)
	}
	location, transport, err := r.locate(ctx, id)
	if err != nil {
		return nil, err
	}
	location.Path = utilnet.JoinPreservingTrailingSlash(location.Path, r.path(o))
	handler := proxy.NewUpgradeAwareHandler(location, transport, true, false, proxy.NewErrorResponder(responder))
	if r.check == nil {
		return handler, nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := r.check(req, location); err != nil {
			responder.Error(err)
			return
		}
		handler.ServeHTTP(w, req)
	}), nil
}

func newPodProxy(k kubelets) rest.Storage {
	return &proxyREST[*corev1.PodProxyOptions]{
		locate: podProxy{k}.locate,
		empty:  func() *corev1.PodProxyOptions { return &corev1.PodProxyOptions{} },
		path:   func(o *corev1.PodProxyOptions) string { return o.Path },
	}
}

type podProxy struct{ kubelets }

// locate understands "pod", "pod:port" and "scheme:pod:port".
func (r podProxy) locate(ctx context.Context, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", id))
	}
	p, err := r.pod(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	for i := range p.Spec.Containers {
		if ports := p.Spec.Containers[i].Ports; port == "" && len(ports) > 0 {
			port = strconv.Itoa(int(ports[0].ContainerPort))
		}
	}
	ip := ""
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	if !reachable(ip) {
		return nil, nil, apierrors.NewBadRequest(errNotAllowed.Error())
	}
	host := net.JoinHostPort(ip, port)
	if port == "" {
		host = host[:len(host)-1]
	}
	return &url.URL{Scheme: scheme, Host: host}, plain, nil
}

func newNodeProxy(k kubelets) rest.Storage {
	n := nodeProxy{k}
	return &proxyREST[*corev1.NodeProxyOptions]{
		locate: n.locate,
		empty:  func() *corev1.NodeProxyOptions { return &corev1.NodeProxyOptions{} },
		path:   func(o *corev1.NodeProxyOptions) string { return o.Path },
		check:  n.check,
	}
}

type nodeProxy struct{ kubelets }

// check wants the verb "create" of who enters a container through an agent,
// whatever the method: the agent sees the API server's own right there, and a
// WebSocket begins with GET. The port does not matter, for a Node tells its own.
func (r nodeProxy) check(req *http.Request, location *url.URL) error {
	if httpstream.IsUpgradeRequest(req) || entersContainer(location.Path) {
		return r.mayCreate(req.Context())
	}
	return nil
}

// entersContainer knows the agent's endpoints that run something in a container
// or reach into it.
func entersContainer(p string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path.Clean("/"+p), "/"), "/")
	switch strings.ToLower(first) {
	case "exec", "attach", "run", "portforward":
		return true
	}
	return false
}

// locate understands "node", "node:port" and "scheme:node:port"; without a port
// it is the agent's.
func (r nodeProxy) locate(ctx context.Context, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", id))
	}
	hostPort, err := r.host(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	host, agentPort, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	if err := mayProxyTo(ctx, host); err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if port == "" || port == agentPort {
		return &url.URL{Scheme: "https", Host: hostPort}, r.transport(name), nil
	}
	return &url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)}, plain, nil
}

func newServiceProxy(p serviceProxy) rest.Storage {
	return &proxyREST[*corev1.ServiceProxyOptions]{
		locate: p.locate,
		empty:  func() *corev1.ServiceProxyOptions { return &corev1.ServiceProxyOptions{} },
		path:   func(o *corev1.ServiceProxyOptions) string { return o.Path },
	}
}

// serviceProxy sends a request to one endpoint of a service.
type serviceProxy struct {
	services, endpoints, pods *genericregistry.Store
}

// locate understands "service", "service:port" and "scheme:service:port", port
// being a name or a number.
func (r serviceProxy) locate(ctx context.Context, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	if n, err := strconv.Atoi(port); err == nil {
		if port, err = r.portName(ctx, name, int32(n)); err != nil {
			return nil, nil, err
		}
	}
	obj, err := r.endpoints.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	e := obj.(*corev1.Endpoints)
	if len(e.Subsets) == 0 {
		return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	for _, i := range rand.Perm(len(e.Subsets)) {
		for _, p := range e.Subsets[i].Ports {
			if p.Name != port {
				continue
			}
			for _, j := range rand.Perm(len(e.Subsets[i].Addresses)) {
				if a := &e.Subsets[i].Addresses[j]; r.isPod(ctx, a) {
					return &url.URL{Scheme: scheme, Host: net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port)))}, plain, nil
				}
			}
		}
	}
	return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", id))
}

func (r serviceProxy) portName(ctx context.Context, name string, number int32) (string, error) {
	obj, err := r.services.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, p := range obj.(*corev1.Service).Spec.Ports {
		if p.Port == number {
			return p.Name, nil
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, name))
}

// isPod checks that an address is the pod's that it names: an Endpoints object
// must not open the API server's network to whoever may write it.
func (r serviceProxy) isPod(ctx context.Context, a *corev1.EndpointAddress) bool {
	if a.TargetRef == nil || a.TargetRef.Kind != "Pod" || !reachable(a.IP) {
		return false
	}
	obj, err := r.pods.Get(ctx, a.TargetRef.Name, &metav1.GetOptions{})
	if err != nil {
		return false
	}
	for _, ip := range obj.(*corev1.Pod).Status.PodIPs {
		if ip.IP == a.IP {
			return true
		}
	}
	return false
}
