package endpoints

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	library "k8s.io/endpointslice"
	"k8s.io/endpointslice/util"

	"github.com/shoal-project/shoal/coordinator/controller"
)

const (
	managedByLabel = "endpoints.kubernetes.io/managed-by"
	managedBy      = "endpoint-controller"
	// capacity is how many addresses one object holds (KEP-2283).
	capacity  = 1000
	truncated = "truncated"
)

// member is one pod's address under one port.
type member struct {
	address corev1.EndpointAddress
	ready   bool
}

// subsets groups a Service's pods: ports with the same addresses share a subset.
func subsets(service *corev1.Service, pods []*corev1.Pod) []corev1.EndpointSubset {
	byPort := map[corev1.EndpointPort][]member{}
	for _, pod := range pods {
		if !util.ShouldPodBeInEndpoints(pod, service.Spec.PublishNotReadyAddresses) {
			continue
		}
		address, ok := addressOf(service, pod)
		if !ok {
			continue
		}
		m := member{address, service.Spec.PublishNotReadyAddresses || controller.PodReady(pod)}
		if len(service.Spec.Ports) == 0 && service.Spec.ClusterIP == corev1.ClusterIPNone {
			none := corev1.EndpointPort{Port: -1}
			byPort[none] = append(byPort[none], m)
		}
		for i := range service.Spec.Ports {
			sp := &service.Spec.Ports[i]
			if n, err := library.FindPort(pod, sp); err == nil {
				port := corev1.EndpointPort{Name: sp.Name, Port: int32(n), Protocol: sp.Protocol,
					AppProtocol: sp.AppProtocol}
				byPort[port] = append(byPort[port], m)
			}
		}
	}
	return grouped(byPort)
}

func grouped(byPort map[corev1.EndpointPort][]member) []corev1.EndpointSubset {
	bySet := map[string]*corev1.EndpointSubset{}
	for port, members := range byPort {
		slices.SortFunc(members, func(a, b member) int { return byAddress(a.address, b.address) })
		var key strings.Builder
		for _, m := range members {
			key.WriteString(m.address.IP + "/" + string(m.address.TargetRef.UID))
			if m.ready {
				key.WriteByte('+')
			}
			key.WriteByte(' ')
		}
		s := bySet[key.String()]
		if s == nil {
			s = &corev1.EndpointSubset{}
			for _, m := range members {
				if m.ready {
					s.Addresses = append(s.Addresses, m.address)
				} else {
					s.NotReadyAddresses = append(s.NotReadyAddresses, m.address)
				}
			}
			bySet[key.String()] = s
		}
		if port.Port > 0 {
			s.Ports = append(s.Ports, port)
		}
	}
	var out []corev1.EndpointSubset
	for _, key := range slices.Sorted(maps.Keys(bySet)) {
		s := bySet[key]
		slices.SortFunc(s.Ports, func(a, b corev1.EndpointPort) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
		})
		out = append(out, *s)
	}
	return out
}

func byAddress(a, b corev1.EndpointAddress) int {
	return cmp.Or(cmp.Compare(a.IP, b.IP), cmp.Compare(a.TargetRef.UID, b.TargetRef.UID))
}

// addressOf is the pod's address of the Service's first family.
func addressOf(service *corev1.Service, pod *corev1.Pod) (corev1.EndpointAddress, bool) {
	v6 := len(service.Spec.IPFamilies) > 0 && service.Spec.IPFamilies[0] == corev1.IPv6Protocol
	for _, ip := range pod.Status.PodIPs {
		a, err := netip.ParseAddr(ip.IP)
		if err != nil || a.Is6() != v6 {
			continue
		}
		address := corev1.EndpointAddress{
			IP:        a.String(),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		}
		if pod.Spec.NodeName != "" {
			address.NodeName = &pod.Spec.NodeName
		}
		if util.ShouldSetHostname(pod, service) {
			address.Hostname = pod.Spec.Hostname
		}
		return address, true
	}
	return corev1.EndpointAddress{}, false
}

// truncate cuts the subsets to capacity, ready addresses first to stay, and
// tells whether it had to.
func truncate(list []corev1.EndpointSubset) bool {
	total := 0
	for i := range list {
		total += len(list[i].Addresses) + len(list[i].NotReadyAddresses)
	}
	if total <= capacity {
		return false
	}
	left := capacity
	for i := range list {
		list[i].Addresses = list[i].Addresses[:min(len(list[i].Addresses), left)]
		left -= len(list[i].Addresses)
	}
	for i := range list {
		list[i].NotReadyAddresses = list[i].NotReadyAddresses[:min(len(list[i].NotReadyAddresses), left)]
		left -= len(list[i].NotReadyAddresses)
	}
	return true
}

// labelsOf are a Service's labels and our own.
func labelsOf(service *corev1.Service) map[string]string {
	out := maps.Clone(service.Labels)
	if out == nil {
		out = map[string]string{}
	}
	delete(out, corev1.IsHeadlessService)
	if service.Spec.ClusterIP == corev1.ClusterIPNone || service.Spec.ClusterIP == "" {
		out[corev1.IsHeadlessService] = ""
	}
	out[managedByLabel] = managedBy
	return out
}
