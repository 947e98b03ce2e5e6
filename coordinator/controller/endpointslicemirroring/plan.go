package endpointslicemirroring

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	managedBy = "endpointslicemirroring-controller.k8s.io"
	// perSubset is how many addresses of a subset are mirrored.
	perSubset        = 1000
	leaderAnnotation = "control-plane.alpha.kubernetes.io/leader"
)

// mirrored tells whether the Endpoints of a Service are to be mirrored.
func mirrored(e *corev1.Endpoints, service *corev1.Service) bool {
	return e != nil && service != nil && service.Spec.Selector == nil &&
		e.Labels[discoveryv1.LabelSkipMirror] != "true" && e.Annotations[leaderAnnotation] == ""
}

// mirror is what an Endpoints object becomes.
type mirror struct {
	slices           []*discoveryv1.EndpointSlice
	invalid, skipped int
}

// plan makes one slice for each subset and address family. The name follows
// from the ports, so that a slice is never made twice.
func plan(e *corev1.Endpoints) (mirror, error) {
	var m mirror
	byName := map[string]*discoveryv1.EndpointSlice{}
	for i := range e.Subsets {
		s := &e.Subsets[i]
		left := perSubset
		add := func(addresses []corev1.EndpointAddress, ready bool) error {
			for j := range addresses {
				endpoint, family, ok := endpointOf(&addresses[j], ready)
				switch {
				case !ok:
					m.invalid++
					continue
				case left == 0:
					m.skipped++
					continue
				}
				left--
				slice, err := newSlice(e, s.Ports, family)
				if err != nil {
					return err
				}
				if byName[slice.Name] == nil {
					byName[slice.Name] = slice
				}
				byName[slice.Name].Endpoints = append(byName[slice.Name].Endpoints, endpoint)
			}
			return nil
		}
		if err := add(s.Addresses, true); err != nil {
			return m, err
		}
		if err := add(s.NotReadyAddresses, false); err != nil {
			return m, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		m.slices = append(m.slices, byName[name])
	}
	return m, nil
}

func endpointOf(a *corev1.EndpointAddress, ready bool) (discoveryv1.Endpoint, discoveryv1.AddressType, bool) {
	ip, err := netip.ParseAddr(a.IP)
	if err != nil {
		return discoveryv1.Endpoint{}, "", false
	}
	e := discoveryv1.Endpoint{
		Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		TargetRef: a.TargetRef, NodeName: a.NodeName,
	}
	if a.Hostname != "" {
		e.Hostname = &a.Hostname
	}
	if ip.Is4() {
		return e, discoveryv1.AddressTypeIPv4, true
	}
	return e, discoveryv1.AddressTypeIPv6, true
}

func newSlice(e *corev1.Endpoints, ports []corev1.EndpointPort,
	family discoveryv1.AddressType) (*discoveryv1.EndpointSlice, error) {
	data, err := json.Marshal(ports)
	if err != nil {
		return nil, fmt.Errorf("name slice: %w", err)
	}
	h := fnv.New32a()
	_, _ = h.Write(append(data, family...))
	prefix := e.Name
	suffix := "-" + rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
	prefix = prefix[:min(len(prefix), validation.DNS1123SubdomainMaxLength-len(suffix))]
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: prefix + suffix, Namespace: e.Namespace,
			Labels: maps.Clone(e.Labels), Annotations: maps.Clone(e.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(e, corev1.SchemeGroupVersion.WithKind("Endpoints"))},
		},
		AddressType: family,
	}
	if slice.Labels == nil {
		slice.Labels = map[string]string{}
	}
	slice.Labels[discoveryv1.LabelServiceName] = e.Name
	slice.Labels[discoveryv1.LabelManagedBy] = managedBy
	delete(slice.Annotations, corev1.EndpointsLastChangeTriggerTime)
	delete(slice.Annotations, corev1.LastAppliedConfigAnnotation)
	for i := range ports {
		p := ports[i]
		slice.Ports = append(slice.Ports,
			discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol})
	}
	return slice, nil
}
