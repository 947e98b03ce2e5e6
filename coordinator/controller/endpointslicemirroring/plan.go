package endpointslicemirroring

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	netutils "k8s.io/utils/net"
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

// plan makes one slice for each set of ports and address family. The name follows
// from the ports, so that a slice is never made twice.
func plan(e *corev1.Endpoints) (mirror, error) {
	var m mirror
	byName := map[string]*discoveryv1.EndpointSlice{}
	added := map[string]int{} // addresses, by ports
	seen := map[string]int{}  // where an endpoint is, by its slice, address and pod
	for i := range e.Subsets {
		s := &e.Subsets[i]
		ports, err := json.Marshal(s.Ports)
		if err != nil {
			return m, fmt.Errorf("name slice: %w", err)
		}
		add := func(addresses []corev1.EndpointAddress, ready bool) {
			for j := range addresses {
				endpoint, family, ok := endpointOf(&addresses[j], ready)
				if !ok {
					m.invalid++
					continue
				}
				slice := newSlice(e, s.Ports, ports, family)
				id := slice.Name + " " + endpoint.Addresses[0]
				if ref := endpoint.TargetRef; ref != nil {
					id += " " + string(ref.UID)
				}
				if at, twice := seen[id]; twice {
					if !ready { // the word that counts
						byName[slice.Name].Endpoints[at].Conditions.Ready = &ready
					}
					continue
				}
				if added[string(ports)] == perSubset {
					m.skipped++
					continue
				}
				added[string(ports)]++
				if byName[slice.Name] == nil {
					byName[slice.Name] = slice
				}
				slice = byName[slice.Name]
				seen[id] = len(slice.Endpoints)
				slice.Endpoints = append(slice.Endpoints, endpoint)
			}
		}
		add(s.Addresses, true)
		add(s.NotReadyAddresses, false)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		m.slices = append(m.slices, byName[name])
	}
	return m, nil
}

func endpointOf(a *corev1.EndpointAddress, ready bool) (discoveryv1.Endpoint, discoveryv1.AddressType, bool) {
	ip := netutils.ParseIPSloppy(a.IP) // validation lets zeros in front, as in 010.0.0.1, through
	if ip == nil {
		return discoveryv1.Endpoint{}, "", false
	}
	e := discoveryv1.Endpoint{
		Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		TargetRef: a.TargetRef, NodeName: a.NodeName,
	}
	if a.Hostname != "" {
		e.Hostname = &a.Hostname
	}
	if ip.To4() != nil {
		return e, discoveryv1.AddressTypeIPv4, true
	}
	return e, discoveryv1.AddressTypeIPv6, true
}

// newSlice makes a slice without endpoints; encoded are its ports, for its name.
func newSlice(e *corev1.Endpoints, ports []corev1.EndpointPort, encoded []byte,
	family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	h := fnv.New32a()
	_, _ = h.Write(encoded)
	_, _ = h.Write([]byte(family))
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
	return slice
}
