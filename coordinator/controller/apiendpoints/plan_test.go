package apiendpoints

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// printSubsets is kubectl's form: addresses, then their port.
func printSubsets(list []corev1.EndpointSubset) string {
	var out []string
	for _, s := range list {
		var ips []string
		for _, a := range s.Addresses {
			ips = append(ips, a.IP)
		}
		out = append(out, fmt.Sprintf("%s %d", strings.Join(ips, ","), s.Ports[0].Port))
	}
	return strings.Join(out, "; ")
}

func printSlices(list []*discoveryv1.EndpointSlice) string {
	var out []string
	for _, s := range list {
		var ips []string
		for _, e := range s.Endpoints {
			ips = append(ips, e.Addresses...)
		}
		out = append(out, fmt.Sprintf("%s %s %s %d", s.Name, s.AddressType, strings.Join(ips, ","), *s.Ports[0].Port))
	}
	return strings.Join(out, "; ")
}

func TestPlan(t *testing.T) {
	for _, c := range []struct{ names, endpoints, slices string }{
		{"", "", ""},
		{"192.0.2.1:6443", "192.0.2.1 6443", "kubernetes IPv4 192.0.2.1 6443"},
		{"[2001:db8::1]:6443", "2001:db8::1 6443", "kubernetes IPv6 2001:db8::1 6443"},
		// In the same order whoever publishes; each once; what is no address is nobody's.
		{"192.0.2.3:6443 192.0.2.1:6443 192.0.2.3:6443 x", "192.0.2.1,192.0.2.3 6443", "kubernetes IPv4 192.0.2.1,192.0.2.3 6443"},
		{
			"192.0.2.2:7443 192.0.2.1:6443", "192.0.2.1 6443; 192.0.2.2 7443",
			"kubernetes IPv4 192.0.2.1 6443; kubernetes-ipv4-7443 IPv4 192.0.2.2 7443",
		},
		{
			"[2001:db8::1]:6443 192.0.2.1:6443", "192.0.2.1,2001:db8::1 6443",
			"kubernetes IPv4 192.0.2.1 6443; kubernetes-ipv6-6443 IPv6 2001:db8::1 6443",
		},
	} {
		all := servers(strings.Fields(c.names))
		if got := printSubsets(subsets(all)); got != c.endpoints {
			t.Errorf("%s: endpoints %q, want %q", c.names, got, c.endpoints)
		}
		if got := printSlices(endpointSlices(all)); got != c.slices {
			t.Errorf("%s: slices %q, want %q", c.names, got, c.slices)
		}
	}
}
