package admission

import (
	"fmt"
	"net"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// serviceAddresses finds webhooks behind Services by their ClusterIP, since the
// coordinator's machine need not resolve cluster names.
type serviceAddresses struct{ services corelisters.ServiceLister }

// ResolveEndpoint implements webhook.ServiceResolver.
func (s serviceAddresses) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	service, err := s.services.Services(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return &url.URL{Scheme: "https", Host: net.JoinHostPort(service.Spec.ExternalName, strconv.Itoa(int(port)))}, nil
	}
	for _, p := range service.Spec.Ports {
		if p.Port != port {
			continue
		}
		if ip := service.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone {
			return &url.URL{Scheme: "https", Host: net.JoinHostPort(ip, strconv.Itoa(int(port)))}, nil
		}
		return nil, fmt.Errorf("cannot route to service with ClusterIP %q", service.Spec.ClusterIP)
	}
	return nil, fmt.Errorf("no service port %d found for service %q", port, name)
}
