package apiendpoints

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// service is the name of the API's Service and of its objects.
	service  = "kubernetes"
	portName = "https"
	// manager marks the slices beside the one that has the Service's name.
	manager = "apiendpoints.shoal"
)

// servers are the addresses that names tell of, each once, those of IPv4 first.
func servers(names []string) (out []netip.AddrPort) {
	for _, name := range names {
		if a, err := netip.ParseAddrPort(name); err == nil {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}

// group is some servers that one subset, or one slice, can name.
type group struct {
	family    discoveryv1.AddressType // of a slice
	port      int32
	addresses []string
}

// groups splits servers by port, and by family where a group has only one.
func groups(all []netip.AddrPort, oneFamily bool) (out []group) {
	for _, a := range all {
		g := group{port: int32(a.Port())}
		if oneFamily && a.Addr().Is4() {
			g.family = discoveryv1.AddressTypeIPv4
		} else if oneFamily {
			g.family = discoveryv1.AddressTypeIPv6
		}
		i := slices.IndexFunc(out, func(o group) bool { return o.port == g.port && o.family == g.family })
		if i < 0 {
			i, out = len(out), append(out, g)
		}
		out[i].addresses = append(out[i].addresses, a.Addr().String())
	}
	return out
}

// subsets is what Endpoints are to say of servers.
func subsets(all []netip.AddrPort) (out []corev1.EndpointSubset) {
	for _, g := range groups(all, false) {
		port := corev1.EndpointPort{Name: portName, Port: g.port, Protocol: corev1.ProtocolTCP}
		s := corev1.EndpointSubset{Ports: []corev1.EndpointPort{port}}
		for _, ip := range g.addresses {
			s.Addresses = append(s.Addresses, corev1.EndpointAddress{IP: ip})
		}
		out = append(out, s)
	}
	return out
}

// endpointSlices says the same in slices. The first has the Service's name; there
// are more only where coordinators differ in their family or port.
func endpointSlices(all []netip.AddrPort) (out []*discoveryv1.EndpointSlice) {
	for i, g := range groups(all, true) {
		s := endpointSlice(g)
		if i > 0 {
			s.Name = fmt.Sprintf("%s-%s-%d", service, strings.ToLower(string(g.family)), g.port)
			s.Labels[discoveryv1.LabelManagedBy] = manager
		}
		out = append(out, s)
	}
	return out
}

func endpointSlice(g group) *discoveryv1.EndpointSlice {
	name, protocol, ready := portName, corev1.ProtocolTCP, true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: g.family,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &g.port, Protocol: &protocol}},
	}
	for _, ip := range g.addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}

// leftOver tells whether a stored slice of the Service was made here for servers
// that are not wanted any more.
func leftOver(have *discoveryv1.EndpointSlice, wanted []*discoveryv1.EndpointSlice) bool {
	return have.Labels[discoveryv1.LabelManagedBy] == manager &&
		!slices.ContainsFunc(wanted, func(w *discoveryv1.EndpointSlice) bool { return w.Name == have.Name })
}
