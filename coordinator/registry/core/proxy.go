package core

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// proxyMethods are the HTTP methods that /proxy passes on.
var proxyMethods = []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"}

// plain dials pods. Their certificates are their own affair, as upstream.
var plain = utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}})

// proxying rewrites a request to location; links in HTML are rewritten back.
func proxying(location *url.URL, transport http.RoundTripper, path string, responder rest.Responder) http.Handler {
	location.Path = utilnet.JoinPreservingTrailingSlash(location.Path, path)
	return proxy.NewUpgradeAwareHandler(location, transport, true, false, proxy.NewErrorResponder(responder))
}

// reachable refuses addresses of the API server's own machine and links.
func reachable(ip string) bool {
	a, err := netip.ParseAddr(ip)
	return err == nil && a.IsGlobalUnicast()
}

type podProxy struct{ kubelets }

// locate understands "pod", "pod:port" and "scheme:pod:port".
func (r *podProxy) locate(ctx context.Context, id string) (*url.URL, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", id))
	}
	p, err := r.pod(ctx, name)
	if err != nil {
		return nil, err
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
		return nil, apierrors.NewBadRequest("address not allowed")
	}
	host := net.JoinHostPort(ip, port)
	if port == "" {
		host = host[:len(host)-1]
	}
	return &url.URL{Scheme: scheme, Host: host}, nil
}

type podProxyREST struct{ podProxy }

var _ rest.Connecter = &podProxyREST{}

func (r *podProxyREST) New() runtime.Object      { return &corev1.PodProxyOptions{} }
func (r *podProxyREST) Destroy()                 {}
func (r *podProxyREST) ConnectMethods() []string { return proxyMethods }
func (r *podProxyREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodProxyOptions{}, true, "path"
}

func (r *podProxyREST) Connect(ctx context.Context, id string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	o, ok := options.(*corev1.PodProxyOptions)
	if !ok {
		return nil, fmt.Errorf("Invalid options object: %#v", options)
	}
	location, err := r.locate(ctx, id)
	if err != nil {
		return nil, err
	}
	return proxying(location, plain, o.Path, responder), nil
}

type nodeProxyREST struct{ kubelets }

var _ rest.Connecter = &nodeProxyREST{}

func newNodeProxy(env *kind.Env, stores kind.Stores) rest.Storage {
	return &nodeProxyREST{kubelets{nodes: stores["/nodes"], transport: env.KubeletTransport}}
}

func (r *nodeProxyREST) New() runtime.Object      { return &corev1.NodeProxyOptions{} }
func (r *nodeProxyREST) Destroy()                 {}
func (r *nodeProxyREST) ConnectMethods() []string { return proxyMethods }
func (r *nodeProxyREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.NodeProxyOptions{}, true, "path"
}

func (r *nodeProxyREST) Connect(ctx context.Context, id string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	o, ok := options.(*corev1.NodeProxyOptions)
	if !ok {
		return nil, fmt.Errorf("Invalid options object: %#v", options)
	}
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", id))
	}
	hostPort, err := r.host(ctx, name)
	if err != nil {
		return nil, err
	}
	host, agentPort, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if ip, err := netip.ParseAddr(host); err == nil && !ip.IsGlobalUnicast() {
		return nil, apierrors.NewBadRequest("address not allowed")
	}
	if port == "" || port == agentPort {
		return proxying(&url.URL{Scheme: "https", Host: hostPort}, r.transport, o.Path, responder), nil
	}
	return proxying(&url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)}, plain, o.Path, responder), nil
}

// serviceProxyREST sends a request to one endpoint of a service.
type serviceProxyREST struct {
	services, endpoints, pods *genericregistry.Store
}

var _ rest.Connecter = &serviceProxyREST{}

func (r *serviceProxyREST) New() runtime.Object      { return &corev1.ServiceProxyOptions{} }
func (r *serviceProxyREST) Destroy()                 {}
func (r *serviceProxyREST) ConnectMethods() []string { return proxyMethods }
func (r *serviceProxyREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.ServiceProxyOptions{}, true, "path"
}

func (r *serviceProxyREST) Connect(ctx context.Context, id string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	o, ok := options.(*corev1.ServiceProxyOptions)
	if !ok {
		return nil, fmt.Errorf("Invalid options object: %#v", options)
	}
	location, err := r.locate(ctx, id)
	if err != nil {
		return nil, err
	}
	return proxying(location, plain, o.Path, responder), nil
}

// locate understands "service", "service:port" and "scheme:service:port", port
// being a name or a number.
func (r *serviceProxyREST) locate(ctx context.Context, id string) (*url.URL, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	if n, err := strconv.Atoi(port); err == nil {
		if port, err = r.portName(ctx, name, int32(n)); err != nil {
			return nil, err
		}
	}
	obj, err := r.endpoints.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	e := obj.(*corev1.Endpoints)
	if len(e.Subsets) == 0 {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	for _, i := range rand.Perm(len(e.Subsets)) {
		for _, p := range e.Subsets[i].Ports {
			if p.Name != port {
				continue
			}
			for _, j := range rand.Perm(len(e.Subsets[i].Addresses)) {
				if a := &e.Subsets[i].Addresses[j]; r.isPod(ctx, a) {
					return &url.URL{Scheme: scheme, Host: net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port)))}, nil
				}
			}
		}
	}
	return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", id))
}

func (r *serviceProxyREST) portName(ctx context.Context, name string, number int32) (string, error) {
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
func (r *serviceProxyREST) isPod(ctx context.Context, a *corev1.EndpointAddress) bool {
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
