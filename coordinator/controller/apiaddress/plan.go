package apiaddress

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// Name is that of the Service and its slice.
const (
	Namespace = metav1.NamespaceSystem
	Name      = "shoal-api"

	portName = "https"
	// class and wanted are controller/loadbalancer's words.
	class  = "shoal.io/load-balancer"
	wanted = "shoal.io/load-balancer-addresses"
	// manager keeps other controllers off the slice.
	manager = "apiaddress.shoal"
)

// backend is a coordinator on a node.
type backend struct {
	addr string
	node string
}

// backends are the coordinators that serve on machines with a node, of one family, and
// their port: that of most of them.
func backends(served []*discoveryv1.EndpointSlice, nodes []*corev1.Node, family discoveryv1.AddressType) (
	out []backend, port int32,
) {
	by := map[string]string{}
	for _, n := range nodes {
		for _, a := range n.Status.Addresses {
			by[a.Address] = n.Name
		}
	}
	ports := map[int32][]backend{}
	for _, s := range served {
		if s.AddressType != family || len(s.Ports) == 0 || s.Ports[0].Port == nil {
			continue
		}
		for _, e := range s.Endpoints {
			for _, a := range e.Addresses {
				if node := by[a]; node != "" && ptr.Deref(e.Conditions.Ready, true) {
					ports[*s.Ports[0].Port] = append(ports[*s.Ports[0].Port], backend{a, node})
				}
			}
		}
	}
	for p, list := range ports {
		if len(list) > len(out) || len(list) == len(out) && p < port {
			out, port = list, p
		}
	}
	slices.SortFunc(out, func(a, b backend) int { return cmp.Or(cmp.Compare(a.addr, b.addr), cmp.Compare(a.node, b.node)) })
	return slices.Compact(out), port
}

func familyOf(a netip.Addr) (discoveryv1.AddressType, corev1.IPFamily) {
	if a.Is4() {
		return discoveryv1.AddressTypeIPv4, corev1.IPv4Protocol
	}
	return discoveryv1.AddressTypeIPv6, corev1.IPv6Protocol
}

// service is what the Service is to be, with what have says of itself.
func service(have *corev1.Service, address netip.Addr, port int32) *corev1.Service {
	_, family := familyOf(address)
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name}}
	if have != nil {
		s = have.DeepCopy()
	}
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, wanted, address.String())
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.LoadBalancerClass = ptr.To(class)
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	s.Spec.AllocateLoadBalancerNodePorts = ptr.To(false)
	s.Spec.Selector = nil
	if have == nil {
		s.Spec.IPFamilies = []corev1.IPFamily{family}
	}
	// The same port as coordinators have: kubeconfigs differ in the address alone.
	s.Spec.Ports = []corev1.ServicePort{{
		Name:       portName,
		Protocol:   corev1.ProtocolTCP,
		Port:       port,
		TargetPort: intstr.FromInt32(port),
	}}
	return s
}

// endpointSlice is what the slice is to be.
func endpointSlice(list []backend, port int32, family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name, Labels: map[string]string{
			discoveryv1.LabelServiceName: Name,
			discoveryv1.LabelManagedBy:   manager,
		}},
		AddressType: family,
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To(portName), Port: &port, Protocol: ptr.To(corev1.ProtocolTCP)},
		},
	}
	for _, b := range list {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{b.addr},
			NodeName:   &b.node,
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	return s
}
