package apiserver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// slicesOf are the EndpointSlices of every Service.
type slicesOf []*discoveryv1.EndpointSlice

func (s slicesOf) GetEndpointSlices(string, string) ([]*discoveryv1.EndpointSlice, error) {
	return s, nil
}

// TestResolveEndpoint: webhooks and aggregated servers are found where the Service proxy
// of a node would lead to.
func TestResolveEndpoint(t *testing.T) {
	endpoint := func(address string, ready, serving, terminating bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{
			Ready: &ready, Serving: &serving, Terminating: &terminating}}
	}
	cluster := corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.9",
		Ports: []corev1.ServicePort{{Name: "hook", Port: 443}}}
	const none = `no endpoints available for service "hook"`
	for name, test := range map[string]struct {
		service   corev1.ServiceSpec
		endpoints []discoveryv1.Endpoint
		want, err string
	}{
		"ready": {service: cluster, want: "https://10.0.0.2:9443", endpoints: []discoveryv1.Endpoint{
			endpoint("10.0.0.1", false, true, true), endpoint("10.0.0.2", true, true, false)}},
		"terminating": {service: cluster, want: "https://10.0.0.2:9443", endpoints: []discoveryv1.Endpoint{
			endpoint("10.0.0.1", false, false, false), endpoint("10.0.0.2", false, true, true)}},
		"terminated": {service: cluster, err: none, endpoints: []discoveryv1.Endpoint{
			endpoint("10.0.0.1", false, false, false), endpoint("10.0.0.2", false, false, true)}},
		"nowhere": {service: cluster, err: none},
		"external": {want: "https://hook.example.com:443", service: corev1.ServiceSpec{
			Type: corev1.ServiceTypeExternalName, ExternalName: "hook.example.com"}},
	} {
		t.Run(name, func(t *testing.T) {
			index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
			meta := metav1.ObjectMeta{Namespace: "default", Name: "hook"}
			if err := index.Add(&corev1.Service{ObjectMeta: meta, Spec: test.service}); err != nil {
				t.Fatal(err)
			}
			r := clusterResolver{services: corelisters.NewServiceLister(index), slices: slicesOf{{
				Endpoints: test.endpoints,
				Ports:     []discoveryv1.EndpointPort{{Name: ptr.To("hook"), Port: ptr.To[int32](9443)}},
			}}}
			got, err := r.ResolveEndpoint("default", "hook", 443)
			switch {
			case test.err != "":
				if err == nil || err.Error() != test.err {
					t.Errorf("error %v, want %q", err, test.err)
				}
			case err != nil:
				t.Error(err)
			case got.String() != test.want:
				t.Errorf("found %s, want %s", got, test.want)
			}
		})
	}
}
